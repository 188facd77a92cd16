// The last position of each sequence predicts nothing: its row is dropped before the product, and
// its gradient is zero. Class weights: the divisor is the sum of the targets'.
// tolerance 1e-5
// before
graph joint {
  %x: f32[3,401,4] = input argument "x"
  %w: f32[2048,4] = input parameter "w"
  %class_weight: f32[2048] = input buffer "class_weight"
  %target: i64[1200] = input argument "target"
  %tangent: f32[] = input tangent "loss"
  %rows: f32[1203,4] = reshape(%x) [shape=[1203, 4]]
  %w.t: f32[4,2048] = permute(%w) [axes=[1, 0]]
  %mm: f32[1203,2048] = matmul(%rows, %w.t)  # model.py:7 @lm_head
  %logits: f32[3,401,2048] = reshape(%mm) [shape=[3, 401, 2048]]
  %shifted: f32[3,400,2048] = slice(%logits) [axis=1, start=0, step=1, stop=400]
  %flat: f32[1200,2048] = reshape(%shifted) [shape=[1200, 2048]]
  %loss: f32[], %logsumexp: f32[1200], %divisor: f32[] = cross_entropy(%flat, %target, %class_weight) [ignore_index=3, label_smoothing=0.0, reduction="mean"]  # model.py:9
  %g: f32[1200,2048] = cross_entropy_backward(%tangent, %flat, %target, %class_weight, %logsumexp, %divisor) [ignore_index=3, label_smoothing=0.0, reduction="mean"]  # model.py:9
  %g.view: f32[3,400,2048] = reshape(%g) [shape=[3, 400, 2048]]
  %g.padded: f32[3,401,2048] = pad(%g.view) [high=[0, 1, 0], low=[0, 0, 0], value=0]
  %g.rows: f32[1203,2048] = reshape(%g.padded) [shape=[1203, 2048]]
  %g.t: f32[2048,1203] = permute(%g.rows) [axes=[1, 0]]
  %dw: f32[2048,4] = matmul(%g.t, %rows)  # model.py:7 @lm_head
  %dx: f32[1203,4] = matmul(%g.rows, %w)  # model.py:7 @lm_head
  output result "loss" = %loss
  output gradient "x" = %dx
  output gradient "w" = %dw
}
// after
graph joint {
  %x: f32[3,401,4] = input argument "x"
  %w: f32[2048,4] = input parameter "w"
  %class_weight: f32[2048] = input buffer "class_weight"
  %target: i64[1200] = input argument "target"
  %tangent: f32[] = input tangent "loss"
  %rows: f32[1203,4] = reshape(%x) [shape=[1203, 4]]
  %w.t: f32[4,2048] = permute(%w) [axes=[1, 0]]
  %lm_head.counted: b8[1200] = ne(%target, 3)  # model.py:9
  %lm_head.target.inside: i64[1200] = where(%lm_head.counted, %target, 0)  # model.py:9
  %lm_head.class_weight: f32[2048,1] = reshape(%class_weight) [shape=[2048, 1]]  # model.py:9
  %lm_head.target.weight: f32[1200,1] = embedding(%lm_head.class_weight, %lm_head.target.inside)  # model.py:9
  %lm_head.target.weights: f32[1200] = reshape(%lm_head.target.weight) [shape=[1200]]  # model.py:9
  %lm_head.row_weight: f32[1200] = where(%lm_head.counted, %lm_head.target.weights, 0)  # model.py:9
  %lm_head.divisor: f32[] = sum(%lm_head.row_weight) [axes=[0], keepdim=false]  # model.py:9
  %lm_head.one: f32[] = full() [dtype=f32, shape=[], value=1.0]  # model.py:9
  %lm_head.chunks.0.target: i64[600] = slice(%target) [axis=0, start=0, step=1, stop=600]  # model.py:9
  %lm_head.x.rows: f32[3,401,4] = reshape(%rows) [shape=[3, 401, 4]]  # model.py:7 @lm_head
  %lm_head.x.cut: f32[3,400,4] = slice(%lm_head.x.rows) [axis=1, start=0, step=1, stop=400]  # model.py:7 @lm_head
  %lm_head.x.rows_2: f32[1200,4] = reshape(%lm_head.x.cut) [shape=[1200, 4]]  # model.py:7 @lm_head
  %lm_head.chunks.0.x: f32[600,4] = slice(%lm_head.x.rows_2) [axis=0, start=0, step=1, stop=600]  # model.py:7 @lm_head
  %lm_head.chunks.0.logits: f32[600,2048] = matmul(%lm_head.chunks.0.x, %w.t)  # model.py:7 @lm_head
  %lm_head.chunks.0.loss: f32[], %lm_head.chunks.0.logsumexp: f32[600], %lm_head.chunks.0.unused: f32[] = cross_entropy(%lm_head.chunks.0.logits, %lm_head.chunks.0.target, %class_weight) [ignore_index=3, label_smoothing=0.0, reduction="sum"]  # model.py:9
  %lm_head.chunks.0.dlogits: f32[600,2048] = cross_entropy_backward(%lm_head.one, %lm_head.chunks.0.logits, %lm_head.chunks.0.target, %class_weight, %lm_head.chunks.0.logsumexp, %lm_head.divisor) [ignore_index=3, label_smoothing=0.0, reduction="sum"]  # model.py:9
  %lm_head.chunks.0.dlogits.t: f32[2048,600] = permute(%lm_head.chunks.0.dlogits) [axes=[1, 0]]  # model.py:7 @lm_head
  %lm_head.chunks.0.dweight: f32[2048,4] = matmul(%lm_head.chunks.0.dlogits.t, %lm_head.chunks.0.x)  # model.py:7 @lm_head
  %lm_head.chunks.0.dx: f32[600,4] = matmul(%lm_head.chunks.0.dlogits, %w)  # model.py:7 @lm_head
  %lm_head.chunks.1.target: i64[600] = slice(%target) [axis=0, start=600, step=1, stop=1200]  # model.py:9
  %lm_head.chunks.1.x: f32[600,4] = slice(%lm_head.x.rows_2) [axis=0, start=600, step=1, stop=1200]  # model.py:7 @lm_head
  %lm_head.chunks.1.logits: f32[600,2048] = matmul(%lm_head.chunks.1.x, %w.t)  # model.py:7 @lm_head
  %lm_head.chunks.1.loss: f32[], %lm_head.chunks.1.logsumexp: f32[600], %lm_head.chunks.1.unused: f32[] = cross_entropy(%lm_head.chunks.1.logits, %lm_head.chunks.1.target, %class_weight) [ignore_index=3, label_smoothing=0.0, reduction="sum"]  # model.py:9
  %lm_head.chunks.1.dlogits: f32[600,2048] = cross_entropy_backward(%lm_head.one, %lm_head.chunks.1.logits, %lm_head.chunks.1.target, %class_weight, %lm_head.chunks.1.logsumexp, %lm_head.divisor) [ignore_index=3, label_smoothing=0.0, reduction="sum"]  # model.py:9
  %lm_head.chunks.1.dlogits.t: f32[2048,600] = permute(%lm_head.chunks.1.dlogits) [axes=[1, 0]]  # model.py:7 @lm_head
  %lm_head.dweight: f32[2048,4] = addmm(%lm_head.chunks.0.dweight, %lm_head.chunks.1.dlogits.t, %lm_head.chunks.1.x)  # model.py:7 @lm_head
  %lm_head.chunks.1.dx: f32[600,4] = matmul(%lm_head.chunks.1.dlogits, %w)  # model.py:7 @lm_head
  %lm_head.total: f32[] = add(%lm_head.chunks.0.loss, %lm_head.chunks.1.loss)  # model.py:9
  %loss: f32[] = div(%lm_head.total, %lm_head.divisor)  # model.py:9
  %lm_head.dx: f32[1200,4] = concatenate(%lm_head.chunks.0.dx, %lm_head.chunks.1.dx) [axis=0]  # model.py:7 @lm_head
  %dw: f32[2048,4] = mul(%lm_head.dweight, %tangent)  # model.py:7 @lm_head
  %dx.scaled: f32[1200,4] = mul(%lm_head.dx, %tangent)  # model.py:7 @lm_head
  %dx.scaled.shaped: f32[3,400,4] = reshape(%dx.scaled) [shape=[3, 400, 4]]  # model.py:7 @lm_head
  %dx.scaled.shaped.padded: f32[3,401,4] = pad(%dx.scaled.shaped) [high=[0, 1, 0], low=[0, 0, 0], value=0]  # model.py:7 @lm_head
  %dx: f32[1203,4] = reshape(%dx.scaled.shaped.padded) [shape=[1203, 4]]  # model.py:7 @lm_head
  output result "loss" = %loss
  output gradient "x" = %dx
  output gradient "w" = %dw
  output residual "lm_head.dweight" = %lm_head.dweight
  output residual "lm_head.dx" = %lm_head.dx
}
