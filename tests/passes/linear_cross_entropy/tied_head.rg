// Two chunks of 600 rows: the gradient is made in forward, backward multiplies by the upstream one.
// tolerance 1e-5
// before
graph joint {
  %x: f32[1200,4] = input argument "x"
  %w: f32[2048,4] = input parameter "w"
  %target: i64[1200] = input argument "target"
  %tangent: f32[] = input tangent "loss"
  %w.t: f32[4,2048] = permute(%w) [axes=[1, 0]]
  %logits: f32[1200,2048] = matmul(%x, %w.t)  # model.py:7 @lm_head
  %loss: f32[], %logsumexp: f32[1200], %divisor: f32[] = cross_entropy(%logits, %target, none) [ignore_index=-100, label_smoothing=0.0, reduction="mean"]  # model.py:9
  %g: f32[1200,2048] = cross_entropy_backward(%tangent, %logits, %target, none, %logsumexp, %divisor) [ignore_index=-100, label_smoothing=0.0, reduction="mean"]  # model.py:9
  %g.t: f32[2048,1200] = permute(%g) [axes=[1, 0]]
  %dw: f32[2048,4] = matmul(%g.t, %x)  # model.py:7 @lm_head
  %dx: f32[1200,4] = matmul(%g, %w)  # model.py:7 @lm_head
  output result "loss" = %loss
  output gradient "x" = %dx
  output gradient "w" = %dw
}
// after
graph joint {
  %x: f32[1200,4] = input argument "x"
  %w: f32[2048,4] = input parameter "w"
  %target: i64[1200] = input argument "target"
  %tangent: f32[] = input tangent "loss"
  %w.t: f32[4,2048] = permute(%w) [axes=[1, 0]]
  %lm_head.counted: b8[1200] = ne(%target, -100)  # model.py:9
  %lm_head.row_weight: f32[1200] = cast(%lm_head.counted) [dtype=f32]  # model.py:9
  %lm_head.divisor: f32[] = sum(%lm_head.row_weight) [axes=[0], keepdim=false]  # model.py:9
  %lm_head.one: f32[] = full() [dtype=f32, shape=[], value=1.0]  # model.py:9
  %lm_head.chunks.0.target: i64[600] = slice(%target) [axis=0, start=0, step=1, stop=600]  # model.py:9
  %lm_head.chunks.0.x: f32[600,4] = slice(%x) [axis=0, start=0, step=1, stop=600]  # model.py:7 @lm_head
  %lm_head.chunks.0.logits: f32[600,2048] = matmul(%lm_head.chunks.0.x, %w.t)  # model.py:7 @lm_head
  %lm_head.chunks.0.loss: f32[], %lm_head.chunks.0.logsumexp: f32[600], %lm_head.chunks.0.unused: f32[] = cross_entropy(%lm_head.chunks.0.logits, %lm_head.chunks.0.target, none) [ignore_index=-100, label_smoothing=0.0, reduction="sum"]  # model.py:9
  %lm_head.chunks.0.dlogits: f32[600,2048] = cross_entropy_backward(%lm_head.one, %lm_head.chunks.0.logits, %lm_head.chunks.0.target, none, %lm_head.chunks.0.logsumexp, %lm_head.divisor) [ignore_index=-100, label_smoothing=0.0, reduction="sum"]  # model.py:9
  %lm_head.chunks.0.dlogits.t: f32[2048,600] = permute(%lm_head.chunks.0.dlogits) [axes=[1, 0]]  # model.py:7 @lm_head
  %lm_head.chunks.0.dweight: f32[2048,4] = matmul(%lm_head.chunks.0.dlogits.t, %lm_head.chunks.0.x)  # model.py:7 @lm_head
  %lm_head.chunks.0.dx: f32[600,4] = matmul(%lm_head.chunks.0.dlogits, %w)  # model.py:7 @lm_head
  %lm_head.chunks.1.target: i64[600] = slice(%target) [axis=0, start=600, step=1, stop=1200]  # model.py:9
  %lm_head.chunks.1.x: f32[600,4] = slice(%x) [axis=0, start=600, step=1, stop=1200]  # model.py:7 @lm_head
  %lm_head.chunks.1.logits: f32[600,2048] = matmul(%lm_head.chunks.1.x, %w.t)  # model.py:7 @lm_head
  %lm_head.chunks.1.loss: f32[], %lm_head.chunks.1.logsumexp: f32[600], %lm_head.chunks.1.unused: f32[] = cross_entropy(%lm_head.chunks.1.logits, %lm_head.chunks.1.target, none) [ignore_index=-100, label_smoothing=0.0, reduction="sum"]  # model.py:9
  %lm_head.chunks.1.dlogits: f32[600,2048] = cross_entropy_backward(%lm_head.one, %lm_head.chunks.1.logits, %lm_head.chunks.1.target, none, %lm_head.chunks.1.logsumexp, %lm_head.divisor) [ignore_index=-100, label_smoothing=0.0, reduction="sum"]  # model.py:9
  %lm_head.chunks.1.dlogits.t: f32[2048,600] = permute(%lm_head.chunks.1.dlogits) [axes=[1, 0]]  # model.py:7 @lm_head
  %lm_head.dweight: f32[2048,4] = addmm(%lm_head.chunks.0.dweight, %lm_head.chunks.1.dlogits.t, %lm_head.chunks.1.x)  # model.py:7 @lm_head
  %lm_head.chunks.1.dx: f32[600,4] = matmul(%lm_head.chunks.1.dlogits, %w)  # model.py:7 @lm_head
  %lm_head.total: f32[] = add(%lm_head.chunks.0.loss, %lm_head.chunks.1.loss)  # model.py:9
  %loss: f32[] = div(%lm_head.total, %lm_head.divisor)  # model.py:9
  %lm_head.dx: f32[1200,4] = concatenate(%lm_head.chunks.0.dx, %lm_head.chunks.1.dx) [axis=0]  # model.py:7 @lm_head
  %dw: f32[2048,4] = mul(%lm_head.dweight, %tangent)  # model.py:7 @lm_head
  %dx: f32[1200,4] = mul(%lm_head.dx, %tangent)  # model.py:7 @lm_head
  output result "loss" = %loss
  output gradient "x" = %dx
  output gradient "w" = %dw
  output residual "lm_head.dweight" = %lm_head.dweight
  output residual "lm_head.dx" = %lm_head.dx
}
