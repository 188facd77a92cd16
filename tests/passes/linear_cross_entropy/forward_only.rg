// Without a backward only the loss is made.
// tolerance 1e-5
// before
graph joint {
  %x: f32[1200,4] = input argument "x"
  %w: f32[4,2048] = input parameter "w"
  %target: i64[1200] = input argument "target"
  %logits: f32[1200,2048] = matmul(%x, %w)  # model.py:7 @lm_head
  %loss: f32[], %logsumexp: f32[1200], %divisor: f32[] = cross_entropy(%logits, %target, none) [ignore_index=-100, label_smoothing=0.0, reduction="sum"]
  output result "loss" = %loss
}
// after
graph joint {
  %x: f32[1200,4] = input argument "x"
  %w: f32[4,2048] = input parameter "w"
  %target: i64[1200] = input argument "target"
  %lm_head.divisor: f32[] = full() [dtype=f32, shape=[], value=1.0]
  %lm_head.one: f32[] = full() [dtype=f32, shape=[], value=1.0]
  %lm_head.chunks.0.target: i64[600] = slice(%target) [axis=0, start=0, step=1, stop=600]
  %lm_head.chunks.0.x: f32[600,4] = slice(%x) [axis=0, start=0, step=1, stop=600]  # model.py:7 @lm_head
  %lm_head.chunks.0.logits: f32[600,2048] = matmul(%lm_head.chunks.0.x, %w)  # model.py:7 @lm_head
  %lm_head.chunks.0.loss: f32[], %lm_head.chunks.0.logsumexp: f32[600], %lm_head.chunks.0.unused: f32[] = cross_entropy(%lm_head.chunks.0.logits, %lm_head.chunks.0.target, none) [ignore_index=-100, label_smoothing=0.0, reduction="sum"]
  %lm_head.chunks.1.target: i64[600] = slice(%target) [axis=0, start=600, step=1, stop=1200]
  %lm_head.chunks.1.x: f32[600,4] = slice(%x) [axis=0, start=600, step=1, stop=1200]  # model.py:7 @lm_head
  %lm_head.chunks.1.logits: f32[600,2048] = matmul(%lm_head.chunks.1.x, %w)  # model.py:7 @lm_head
  %lm_head.chunks.1.loss: f32[], %lm_head.chunks.1.logsumexp: f32[600], %lm_head.chunks.1.unused: f32[] = cross_entropy(%lm_head.chunks.1.logits, %lm_head.chunks.1.target, none) [ignore_index=-100, label_smoothing=0.0, reduction="sum"]
  %loss: f32[] = add(%lm_head.chunks.0.loss, %lm_head.chunks.1.loss)
  output result "loss" = %loss
}
