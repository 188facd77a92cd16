// bf16 logits with a soft cap, a bias and three axes: sums over rows in f32, rounded once.
// tolerance 5e-2
// before
graph joint {
  %x: bf16[2,4096,4] = input argument "x"
  %w: bf16[4,1024] = input parameter "w"
  %b: bf16[1024] = input parameter "b"
  %labels: i64[2,4096] = input argument "labels"
  %tangent: f32[] = input tangent "loss"
  %rows: bf16[8192,4] = reshape(%x) [shape=[8192, 4]]
  %mm: bf16[8192,1024] = addmm(%b, %rows, %w)  # model.py:7 @lm_head
  %logits: bf16[2,4096,1024] = reshape(%mm) [shape=[2, 4096, 1024]]
  %div: bf16[2,4096,1024] = div(%logits, 30.0)
  %tanh: bf16[2,4096,1024] = tanh(%div)
  %mul: bf16[2,4096,1024] = mul(%tanh, 30.0)
  %wide: f32[2,4096,1024] = cast(%mul) [dtype=f32]
  %flat: f32[8192,1024] = reshape(%wide) [shape=[8192, 1024]]
  %target: i64[8192] = reshape(%labels) [shape=[8192]]
  %loss: f32[], %logsumexp: f32[8192], %divisor: f32[] = cross_entropy(%flat, %target, none) [ignore_index=-100, label_smoothing=0.1, reduction="sum"]  # model.py:9
  %g: f32[8192,1024] = cross_entropy_backward(%tangent, %flat, %target, none, %logsumexp, %divisor) [ignore_index=-100, label_smoothing=0.1, reduction="sum"]  # model.py:9
  %g.view: f32[2,4096,1024] = reshape(%g) [shape=[2, 4096, 1024]]
  %g.narrow: bf16[2,4096,1024] = cast(%g.view) [dtype=bf16]
  %g.mul: bf16[2,4096,1024] = mul(%g.narrow, 30.0)
  %g.tanh: bf16[2,4096,1024] = tanh_backward(%g.mul, %tanh)
  %g.div: bf16[2,4096,1024] = div(%g.tanh, 30.0)
  %g.rows: bf16[8192,1024] = reshape(%g.div) [shape=[8192, 1024]]
  %w.t: bf16[1024,4] = permute(%w) [axes=[1, 0]]
  %dx: bf16[8192,4] = matmul(%g.rows, %w.t)  # model.py:7 @lm_head
  %rows.t: bf16[4,8192] = permute(%rows) [axes=[1, 0]]
  %dw: bf16[4,1024] = matmul(%rows.t, %g.rows)  # model.py:7 @lm_head
  %db.row: bf16[1,1024] = sum(%g.rows) [axes=[0], keepdim=true]
  %db: bf16[1024] = reshape(%db.row) [shape=[1024]]
  output result "loss" = %loss
  output gradient "x" = %dx
  output gradient "w" = %dw
  output gradient "b" = %db
}
// after
graph joint {
  %x: bf16[2,4096,4] = input argument "x"
  %w: bf16[4,1024] = input parameter "w"
  %b: bf16[1024] = input parameter "b"
  %labels: i64[2,4096] = input argument "labels"
  %tangent: f32[] = input tangent "loss"
  %rows: bf16[8192,4] = reshape(%x) [shape=[8192, 4]]
  %target: i64[8192] = reshape(%labels) [shape=[8192]]
  %rows.t: bf16[4,8192] = permute(%rows) [axes=[1, 0]]
  %w.t: bf16[1024,4] = permute(%w) [axes=[1, 0]]
  %lm_head.divisor: f32[] = full() [dtype=f32, shape=[], value=1.0]  # model.py:9
  %lm_head.one: f32[] = full() [dtype=f32, shape=[], value=1.0]  # model.py:9
  %lm_head.chunks.0.target: i64[2048] = slice(%target) [axis=0, start=0, step=1, stop=2048]  # model.py:9
  %lm_head.chunks.0.x: bf16[2048,4] = slice(%rows) [axis=0, start=0, step=1, stop=2048]  # model.py:7 @lm_head
  %lm_head.chunks.0.logits: bf16[2048,1024] = addmm(%b, %lm_head.chunks.0.x, %w)  # model.py:7 @lm_head
  %lm_head.chunks.0.div: bf16[2048,1024] = div(%lm_head.chunks.0.logits, 30.0)
  %lm_head.chunks.0.tanh: bf16[2048,1024] = tanh(%lm_head.chunks.0.div)
  %lm_head.chunks.0.mul: bf16[2048,1024] = mul(%lm_head.chunks.0.tanh, 30.0)
  %lm_head.chunks.0.wide: f32[2048,1024] = cast(%lm_head.chunks.0.mul) [dtype=f32]
  %lm_head.chunks.0.loss: f32[], %lm_head.chunks.0.logsumexp: f32[2048], %lm_head.chunks.0.unused: f32[] = cross_entropy(%lm_head.chunks.0.wide, %lm_head.chunks.0.target, none) [ignore_index=-100, label_smoothing=0.1, reduction="sum"]  # model.py:9
  %lm_head.chunks.0.dlogits: f32[2048,1024] = cross_entropy_backward(%lm_head.one, %lm_head.chunks.0.wide, %lm_head.chunks.0.target, none, %lm_head.chunks.0.logsumexp, %lm_head.divisor) [ignore_index=-100, label_smoothing=0.1, reduction="sum"]  # model.py:9
  %lm_head.chunks.0.narrow: bf16[2048,1024] = cast(%lm_head.chunks.0.dlogits) [dtype=bf16]
  %lm_head.chunks.0.mul_2: bf16[2048,1024] = mul(%lm_head.chunks.0.narrow, 30.0)
  %lm_head.chunks.0.tanh_2: bf16[2048,1024] = tanh_backward(%lm_head.chunks.0.mul_2, %lm_head.chunks.0.tanh)
  %lm_head.chunks.0.div_2: bf16[2048,1024] = div(%lm_head.chunks.0.tanh_2, 30.0)
  %lm_head.chunks.0.dx: bf16[2048,4] = matmul(%lm_head.chunks.0.div_2, %w.t)  # model.py:7 @lm_head
  %lm_head.x.t: bf16[8192,4] = permute(%rows.t) [axes=[1, 0]]  # model.py:7 @lm_head
  %lm_head.chunks.0.x_2: bf16[2048,4] = slice(%lm_head.x.t) [axis=0, start=0, step=1, stop=2048]  # model.py:7 @lm_head
  %lm_head.chunks.0.x_2.f32: f32[2048,4] = cast(%lm_head.chunks.0.x_2) [dtype=f32]  # model.py:7 @lm_head
  %lm_head.chunks.0.div_2.f32: f32[2048,1024] = cast(%lm_head.chunks.0.div_2) [dtype=f32]  # model.py:7 @lm_head
  %lm_head.chunks.0.f32.t: f32[4,2048] = permute(%lm_head.chunks.0.x_2.f32) [axes=[1, 0]]  # model.py:7 @lm_head
  %lm_head.chunks.0.dweight: f32[4,1024] = matmul(%lm_head.chunks.0.f32.t, %lm_head.chunks.0.div_2.f32)  # model.py:7 @lm_head
  %lm_head.chunks.0.dbias: f32[1024] = sum(%lm_head.chunks.0.div_2) [axes=[0], dtype=f32, keepdim=false]
  %lm_head.chunks.1.target: i64[2048] = slice(%target) [axis=0, start=2048, step=1, stop=4096]  # model.py:9
  %lm_head.chunks.1.x: bf16[2048,4] = slice(%rows) [axis=0, start=2048, step=1, stop=4096]  # model.py:7 @lm_head
  %lm_head.chunks.1.logits: bf16[2048,1024] = addmm(%b, %lm_head.chunks.1.x, %w)  # model.py:7 @lm_head
  %lm_head.chunks.1.div: bf16[2048,1024] = div(%lm_head.chunks.1.logits, 30.0)
  %lm_head.chunks.1.tanh: bf16[2048,1024] = tanh(%lm_head.chunks.1.div)
  %lm_head.chunks.1.mul: bf16[2048,1024] = mul(%lm_head.chunks.1.tanh, 30.0)
  %lm_head.chunks.1.wide: f32[2048,1024] = cast(%lm_head.chunks.1.mul) [dtype=f32]
  %lm_head.chunks.1.loss: f32[], %lm_head.chunks.1.logsumexp: f32[2048], %lm_head.chunks.1.unused: f32[] = cross_entropy(%lm_head.chunks.1.wide, %lm_head.chunks.1.target, none) [ignore_index=-100, label_smoothing=0.1, reduction="sum"]  # model.py:9
  %lm_head.chunks.1.dlogits: f32[2048,1024] = cross_entropy_backward(%lm_head.one, %lm_head.chunks.1.wide, %lm_head.chunks.1.target, none, %lm_head.chunks.1.logsumexp, %lm_head.divisor) [ignore_index=-100, label_smoothing=0.1, reduction="sum"]  # model.py:9
  %lm_head.chunks.1.narrow: bf16[2048,1024] = cast(%lm_head.chunks.1.dlogits) [dtype=bf16]
  %lm_head.chunks.1.mul_2: bf16[2048,1024] = mul(%lm_head.chunks.1.narrow, 30.0)
  %lm_head.chunks.1.tanh_2: bf16[2048,1024] = tanh_backward(%lm_head.chunks.1.mul_2, %lm_head.chunks.1.tanh)
  %lm_head.chunks.1.div_2: bf16[2048,1024] = div(%lm_head.chunks.1.tanh_2, 30.0)
  %lm_head.chunks.1.dx: bf16[2048,4] = matmul(%lm_head.chunks.1.div_2, %w.t)  # model.py:7 @lm_head
  %lm_head.chunks.1.x_2: bf16[2048,4] = slice(%lm_head.x.t) [axis=0, start=2048, step=1, stop=4096]  # model.py:7 @lm_head
  %lm_head.chunks.1.x_2.f32: f32[2048,4] = cast(%lm_head.chunks.1.x_2) [dtype=f32]  # model.py:7 @lm_head
  %lm_head.chunks.1.div_2.f32: f32[2048,1024] = cast(%lm_head.chunks.1.div_2) [dtype=f32]  # model.py:7 @lm_head
  %lm_head.chunks.1.f32.t: f32[4,2048] = permute(%lm_head.chunks.1.x_2.f32) [axes=[1, 0]]  # model.py:7 @lm_head
  %lm_head.chunks.1.dweight: f32[4,1024] = addmm(%lm_head.chunks.0.dweight, %lm_head.chunks.1.f32.t, %lm_head.chunks.1.div_2.f32)  # model.py:7 @lm_head
  %lm_head.chunks.1.dbias: f32[1024] = sum(%lm_head.chunks.1.div_2) [axes=[0], dtype=f32, keepdim=false]
  %lm_head.chunks.2.target: i64[2048] = slice(%target) [axis=0, start=4096, step=1, stop=6144]  # model.py:9
  %lm_head.chunks.2.x: bf16[2048,4] = slice(%rows) [axis=0, start=4096, step=1, stop=6144]  # model.py:7 @lm_head
  %lm_head.chunks.2.logits: bf16[2048,1024] = addmm(%b, %lm_head.chunks.2.x, %w)  # model.py:7 @lm_head
  %lm_head.chunks.2.div: bf16[2048,1024] = div(%lm_head.chunks.2.logits, 30.0)
  %lm_head.chunks.2.tanh: bf16[2048,1024] = tanh(%lm_head.chunks.2.div)
  %lm_head.chunks.2.mul: bf16[2048,1024] = mul(%lm_head.chunks.2.tanh, 30.0)
  %lm_head.chunks.2.wide: f32[2048,1024] = cast(%lm_head.chunks.2.mul) [dtype=f32]
  %lm_head.chunks.2.loss: f32[], %lm_head.chunks.2.logsumexp: f32[2048], %lm_head.chunks.2.unused: f32[] = cross_entropy(%lm_head.chunks.2.wide, %lm_head.chunks.2.target, none) [ignore_index=-100, label_smoothing=0.1, reduction="sum"]  # model.py:9
  %lm_head.chunks.2.dlogits: f32[2048,1024] = cross_entropy_backward(%lm_head.one, %lm_head.chunks.2.wide, %lm_head.chunks.2.target, none, %lm_head.chunks.2.logsumexp, %lm_head.divisor) [ignore_index=-100, label_smoothing=0.1, reduction="sum"]  # model.py:9
  %lm_head.chunks.2.narrow: bf16[2048,1024] = cast(%lm_head.chunks.2.dlogits) [dtype=bf16]
  %lm_head.chunks.2.mul_2: bf16[2048,1024] = mul(%lm_head.chunks.2.narrow, 30.0)
  %lm_head.chunks.2.tanh_2: bf16[2048,1024] = tanh_backward(%lm_head.chunks.2.mul_2, %lm_head.chunks.2.tanh)
  %lm_head.chunks.2.div_2: bf16[2048,1024] = div(%lm_head.chunks.2.tanh_2, 30.0)
  %lm_head.chunks.2.dx: bf16[2048,4] = matmul(%lm_head.chunks.2.div_2, %w.t)  # model.py:7 @lm_head
  %lm_head.chunks.2.x_2: bf16[2048,4] = slice(%lm_head.x.t) [axis=0, start=4096, step=1, stop=6144]  # model.py:7 @lm_head
  %lm_head.chunks.2.x_2.f32: f32[2048,4] = cast(%lm_head.chunks.2.x_2) [dtype=f32]  # model.py:7 @lm_head
  %lm_head.chunks.2.div_2.f32: f32[2048,1024] = cast(%lm_head.chunks.2.div_2) [dtype=f32]  # model.py:7 @lm_head
  %lm_head.chunks.2.f32.t: f32[4,2048] = permute(%lm_head.chunks.2.x_2.f32) [axes=[1, 0]]  # model.py:7 @lm_head
  %lm_head.chunks.2.dweight: f32[4,1024] = addmm(%lm_head.chunks.1.dweight, %lm_head.chunks.2.f32.t, %lm_head.chunks.2.div_2.f32)  # model.py:7 @lm_head
  %lm_head.chunks.2.dbias: f32[1024] = sum(%lm_head.chunks.2.div_2) [axes=[0], dtype=f32, keepdim=false]
  %lm_head.chunks.3.target: i64[2048] = slice(%target) [axis=0, start=6144, step=1, stop=8192]  # model.py:9
  %lm_head.chunks.3.x: bf16[2048,4] = slice(%rows) [axis=0, start=6144, step=1, stop=8192]  # model.py:7 @lm_head
  %lm_head.chunks.3.logits: bf16[2048,1024] = addmm(%b, %lm_head.chunks.3.x, %w)  # model.py:7 @lm_head
  %lm_head.chunks.3.div: bf16[2048,1024] = div(%lm_head.chunks.3.logits, 30.0)
  %lm_head.chunks.3.tanh: bf16[2048,1024] = tanh(%lm_head.chunks.3.div)
  %lm_head.chunks.3.mul: bf16[2048,1024] = mul(%lm_head.chunks.3.tanh, 30.0)
  %lm_head.chunks.3.wide: f32[2048,1024] = cast(%lm_head.chunks.3.mul) [dtype=f32]
  %lm_head.chunks.3.loss: f32[], %lm_head.chunks.3.logsumexp: f32[2048], %lm_head.chunks.3.unused: f32[] = cross_entropy(%lm_head.chunks.3.wide, %lm_head.chunks.3.target, none) [ignore_index=-100, label_smoothing=0.1, reduction="sum"]  # model.py:9
  %lm_head.chunks.3.dlogits: f32[2048,1024] = cross_entropy_backward(%lm_head.one, %lm_head.chunks.3.wide, %lm_head.chunks.3.target, none, %lm_head.chunks.3.logsumexp, %lm_head.divisor) [ignore_index=-100, label_smoothing=0.1, reduction="sum"]  # model.py:9
  %lm_head.chunks.3.narrow: bf16[2048,1024] = cast(%lm_head.chunks.3.dlogits) [dtype=bf16]
  %lm_head.chunks.3.mul_2: bf16[2048,1024] = mul(%lm_head.chunks.3.narrow, 30.0)
  %lm_head.chunks.3.tanh_2: bf16[2048,1024] = tanh_backward(%lm_head.chunks.3.mul_2, %lm_head.chunks.3.tanh)
  %lm_head.chunks.3.div_2: bf16[2048,1024] = div(%lm_head.chunks.3.tanh_2, 30.0)
  %lm_head.chunks.3.dx: bf16[2048,4] = matmul(%lm_head.chunks.3.div_2, %w.t)  # model.py:7 @lm_head
  %lm_head.chunks.3.x_2: bf16[2048,4] = slice(%lm_head.x.t) [axis=0, start=6144, step=1, stop=8192]  # model.py:7 @lm_head
  %lm_head.chunks.3.x_2.f32: f32[2048,4] = cast(%lm_head.chunks.3.x_2) [dtype=f32]  # model.py:7 @lm_head
  %lm_head.chunks.3.div_2.f32: f32[2048,1024] = cast(%lm_head.chunks.3.div_2) [dtype=f32]  # model.py:7 @lm_head
  %lm_head.chunks.3.f32.t: f32[4,2048] = permute(%lm_head.chunks.3.x_2.f32) [axes=[1, 0]]  # model.py:7 @lm_head
  %lm_head.dweight: f32[4,1024] = addmm(%lm_head.chunks.2.dweight, %lm_head.chunks.3.f32.t, %lm_head.chunks.3.div_2.f32)  # model.py:7 @lm_head
  %lm_head.chunks.3.dbias: f32[1024] = sum(%lm_head.chunks.3.div_2) [axes=[0], dtype=f32, keepdim=false]
  %lm_head.total: f32[] = add(%lm_head.chunks.0.loss, %lm_head.chunks.1.loss)  # model.py:9
  %lm_head.total_2: f32[] = add(%lm_head.total, %lm_head.chunks.2.loss)  # model.py:9
  %loss: f32[] = add(%lm_head.total_2, %lm_head.chunks.3.loss)  # model.py:9
  %lm_head.dx: bf16[8192,4] = concatenate(%lm_head.chunks.0.dx, %lm_head.chunks.1.dx, %lm_head.chunks.2.dx, %lm_head.chunks.3.dx) [axis=0]  # model.py:7 @lm_head
  %lm_head.dweight.bf16: bf16[4,1024] = cast(%lm_head.dweight) [dtype=bf16]  # model.py:7 @lm_head
  %lm_head.dbias: f32[1024] = add(%lm_head.chunks.0.dbias, %lm_head.chunks.1.dbias)
  %lm_head.dbias_2: f32[1024] = add(%lm_head.dbias, %lm_head.chunks.2.dbias)
  %lm_head.dbias_3: f32[1024] = add(%lm_head.dbias_2, %lm_head.chunks.3.dbias)
  %lm_head.dbias_3.bf16: bf16[1024] = cast(%lm_head.dbias_3) [dtype=bf16]
  %lm_head.dx.f32: f32[8192,4] = cast(%lm_head.dx) [dtype=f32]  # model.py:7 @lm_head
  %dx.scaled: f32[8192,4] = mul(%lm_head.dx.f32, %tangent)  # model.py:7 @lm_head
  %dx: bf16[8192,4] = cast(%dx.scaled) [dtype=bf16]  # model.py:7 @lm_head
  %lm_head.dweight.bf16.f32: f32[4,1024] = cast(%lm_head.dweight.bf16) [dtype=f32]  # model.py:7 @lm_head
  %dw.scaled: f32[4,1024] = mul(%lm_head.dweight.bf16.f32, %tangent)  # model.py:7 @lm_head
  %dw: bf16[4,1024] = cast(%dw.scaled) [dtype=bf16]  # model.py:7 @lm_head
  %lm_head.dbias_3.bf16.f32: f32[1024] = cast(%lm_head.dbias_3.bf16) [dtype=f32]
  %db.row.scaled: f32[1024] = mul(%lm_head.dbias_3.bf16.f32, %tangent)
  %db.row.scaled.bf16: bf16[1024] = cast(%db.row.scaled) [dtype=bf16]
  %db.row: bf16[1,1024] = reshape(%db.row.scaled.bf16) [shape=[1, 1024]]
  %db: bf16[1024] = reshape(%db.row) [shape=[1024]]
  output result "loss" = %loss
  output gradient "x" = %dx
  output gradient "w" = %dw
  output gradient "b" = %db
  output residual "lm_head.dx" = %lm_head.dx
  output residual "lm_head.dweight.bf16" = %lm_head.dweight.bf16
  output residual "lm_head.dbias_3.bf16" = %lm_head.dbias_3.bf16
}
