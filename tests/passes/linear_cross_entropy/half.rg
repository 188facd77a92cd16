// The gradient of f16 logits waits for the loss scale: backward makes it from logits of its own.
// tolerance 1e-2
// before
graph joint {
  %x: f16[4096,4] = input argument "x"
  %w: f16[2048,4] = input parameter "w"
  %target: i64[4096] = input argument "target"
  %tangent: f32[] = input tangent "loss"
  %w.t: f16[4,2048] = permute(%w) [axes=[1, 0]]
  %mm: f16[4096,2048] = matmul(%x, %w.t)  # model.py:7 @lm_head
  %logits: f32[4096,2048] = cast(%mm) [dtype=f32]
  %loss: f32[], %logsumexp: f32[4096], %divisor: f32[] = cross_entropy(%logits, %target, none) [ignore_index=-100, label_smoothing=0.0, reduction="mean"]  # model.py:9
  %scaled: f32[] = mul(%tangent, 0.5)
  %g: f32[4096,2048] = cross_entropy_backward(%scaled, %logits, %target, none, %logsumexp, %divisor) [ignore_index=-100, label_smoothing=0.0, reduction="mean"]  # model.py:9
  %g.half: f16[4096,2048] = cast(%g) [dtype=f16]
  %g.t: f16[2048,4096] = permute(%g.half) [axes=[1, 0]]
  %dw: f16[2048,4] = matmul(%g.t, %x)  # model.py:7 @lm_head
  %dx: f16[4096,4] = matmul(%g.half, %w)  # model.py:7 @lm_head
  output result "loss" = %loss
  output gradient "x" = %dx
  output gradient "w" = %dw
}
// after
graph joint {
  %x: f16[4096,4] = input argument "x"
  %w: f16[2048,4] = input parameter "w"
  %target: i64[4096] = input argument "target"
  %tangent: f32[] = input tangent "loss"
  %w.t: f16[4,2048] = permute(%w) [axes=[1, 0]]
  %lm_head.counted: b8[4096] = ne(%target, -100)  # model.py:9
  %lm_head.row_weight: f32[4096] = cast(%lm_head.counted) [dtype=f32]  # model.py:9
  %lm_head.divisor: f32[] = sum(%lm_head.row_weight) [axes=[0], keepdim=false]  # model.py:9
  %lm_head.chunks.0.target: i64[1024] = slice(%target) [axis=0, start=0, step=1, stop=1024]  # model.py:9
  %lm_head.chunks.0.x: f16[1024,4] = slice(%x) [axis=0, start=0, step=1, stop=1024]  # model.py:7 @lm_head
  %lm_head.chunks.0.logits: f16[1024,2048] = matmul(%lm_head.chunks.0.x, %w.t)  # model.py:7 @lm_head
  %lm_head.chunks.0.logits_2: f32[1024,2048] = cast(%lm_head.chunks.0.logits) [dtype=f32]
  %lm_head.chunks.0.loss: f32[], %lm_head.chunks.0.logsumexp: f32[1024], %lm_head.chunks.0.unused: f32[] = cross_entropy(%lm_head.chunks.0.logits_2, %lm_head.chunks.0.target, none) [ignore_index=-100, label_smoothing=0.0, reduction="sum"]  # model.py:9
  %lm_head.chunks.1.target: i64[1024] = slice(%target) [axis=0, start=1024, step=1, stop=2048]  # model.py:9
  %lm_head.chunks.1.x: f16[1024,4] = slice(%x) [axis=0, start=1024, step=1, stop=2048]  # model.py:7 @lm_head
  %lm_head.chunks.1.logits: f16[1024,2048] = matmul(%lm_head.chunks.1.x, %w.t)  # model.py:7 @lm_head
  %lm_head.chunks.1.logits_2: f32[1024,2048] = cast(%lm_head.chunks.1.logits) [dtype=f32]
  %lm_head.chunks.1.loss: f32[], %lm_head.chunks.1.logsumexp: f32[1024], %lm_head.chunks.1.unused: f32[] = cross_entropy(%lm_head.chunks.1.logits_2, %lm_head.chunks.1.target, none) [ignore_index=-100, label_smoothing=0.0, reduction="sum"]  # model.py:9
  %lm_head.chunks.2.target: i64[1024] = slice(%target) [axis=0, start=2048, step=1, stop=3072]  # model.py:9
  %lm_head.chunks.2.x: f16[1024,4] = slice(%x) [axis=0, start=2048, step=1, stop=3072]  # model.py:7 @lm_head
  %lm_head.chunks.2.logits: f16[1024,2048] = matmul(%lm_head.chunks.2.x, %w.t)  # model.py:7 @lm_head
  %lm_head.chunks.2.logits_2: f32[1024,2048] = cast(%lm_head.chunks.2.logits) [dtype=f32]
  %lm_head.chunks.2.loss: f32[], %lm_head.chunks.2.logsumexp: f32[1024], %lm_head.chunks.2.unused: f32[] = cross_entropy(%lm_head.chunks.2.logits_2, %lm_head.chunks.2.target, none) [ignore_index=-100, label_smoothing=0.0, reduction="sum"]  # model.py:9
  %lm_head.chunks.3.target: i64[1024] = slice(%target) [axis=0, start=3072, step=1, stop=4096]  # model.py:9
  %lm_head.chunks.3.x: f16[1024,4] = slice(%x) [axis=0, start=3072, step=1, stop=4096]  # model.py:7 @lm_head
  %lm_head.chunks.3.logits: f16[1024,2048] = matmul(%lm_head.chunks.3.x, %w.t)  # model.py:7 @lm_head
  %lm_head.chunks.3.logits_2: f32[1024,2048] = cast(%lm_head.chunks.3.logits) [dtype=f32]
  %lm_head.chunks.3.loss: f32[], %lm_head.chunks.3.logsumexp: f32[1024], %lm_head.chunks.3.unused: f32[] = cross_entropy(%lm_head.chunks.3.logits_2, %lm_head.chunks.3.target, none) [ignore_index=-100, label_smoothing=0.0, reduction="sum"]  # model.py:9
  %lm_head.total: f32[] = add(%lm_head.chunks.0.loss, %lm_head.chunks.1.loss)  # model.py:9
  %lm_head.total_2: f32[] = add(%lm_head.total, %lm_head.chunks.2.loss)  # model.py:9
  %lm_head.total_3: f32[] = add(%lm_head.total_2, %lm_head.chunks.3.loss)  # model.py:9
  %loss: f32[] = div(%lm_head.total_3, %lm_head.divisor)  # model.py:9
  %scaled: f32[] = mul(%tangent, 0.5)
  %lm_head.chunks.0.logits_3: f16[1024,2048] = matmul(%lm_head.chunks.0.x, %w.t) [again=true]  # model.py:7 @lm_head
  %lm_head.chunks.0.logits_4: f32[1024,2048] = cast(%lm_head.chunks.0.logits_3) [dtype=f32]
  %lm_head.chunks.0.dlogits: f32[1024,2048] = cross_entropy_backward(%scaled, %lm_head.chunks.0.logits_4, %lm_head.chunks.0.target, none, %lm_head.chunks.0.logsumexp, %lm_head.divisor) [ignore_index=-100, label_smoothing=0.0, reduction="sum"]  # model.py:9
  %lm_head.chunks.0.half: f16[1024,2048] = cast(%lm_head.chunks.0.dlogits) [dtype=f16]
  %lm_head.chunks.0.x.f32: f32[1024,4] = cast(%lm_head.chunks.0.x) [dtype=f32]  # model.py:7 @lm_head
  %lm_head.chunks.0.half.f32: f32[1024,2048] = cast(%lm_head.chunks.0.half) [dtype=f32]  # model.py:7 @lm_head
  %lm_head.chunks.0.f32.t: f32[2048,1024] = permute(%lm_head.chunks.0.half.f32) [axes=[1, 0]]  # model.py:7 @lm_head
  %lm_head.chunks.0.dweight: f32[2048,4] = matmul(%lm_head.chunks.0.f32.t, %lm_head.chunks.0.x.f32)  # model.py:7 @lm_head
  %lm_head.chunks.0.dx: f16[1024,4] = matmul(%lm_head.chunks.0.half, %w)  # model.py:7 @lm_head
  %lm_head.chunks.1.logits_3: f16[1024,2048] = matmul(%lm_head.chunks.1.x, %w.t) [again=true]  # model.py:7 @lm_head
  %lm_head.chunks.1.logits_4: f32[1024,2048] = cast(%lm_head.chunks.1.logits_3) [dtype=f32]
  %lm_head.chunks.1.dlogits: f32[1024,2048] = cross_entropy_backward(%scaled, %lm_head.chunks.1.logits_4, %lm_head.chunks.1.target, none, %lm_head.chunks.1.logsumexp, %lm_head.divisor) [ignore_index=-100, label_smoothing=0.0, reduction="sum"]  # model.py:9
  %lm_head.chunks.1.half: f16[1024,2048] = cast(%lm_head.chunks.1.dlogits) [dtype=f16]
  %lm_head.chunks.1.x.f32: f32[1024,4] = cast(%lm_head.chunks.1.x) [dtype=f32]  # model.py:7 @lm_head
  %lm_head.chunks.1.half.f32: f32[1024,2048] = cast(%lm_head.chunks.1.half) [dtype=f32]  # model.py:7 @lm_head
  %lm_head.chunks.1.f32.t: f32[2048,1024] = permute(%lm_head.chunks.1.half.f32) [axes=[1, 0]]  # model.py:7 @lm_head
  %lm_head.chunks.1.dweight: f32[2048,4] = addmm(%lm_head.chunks.0.dweight, %lm_head.chunks.1.f32.t, %lm_head.chunks.1.x.f32)  # model.py:7 @lm_head
  %lm_head.chunks.1.dx: f16[1024,4] = matmul(%lm_head.chunks.1.half, %w)  # model.py:7 @lm_head
  %lm_head.chunks.2.logits_3: f16[1024,2048] = matmul(%lm_head.chunks.2.x, %w.t) [again=true]  # model.py:7 @lm_head
  %lm_head.chunks.2.logits_4: f32[1024,2048] = cast(%lm_head.chunks.2.logits_3) [dtype=f32]
  %lm_head.chunks.2.dlogits: f32[1024,2048] = cross_entropy_backward(%scaled, %lm_head.chunks.2.logits_4, %lm_head.chunks.2.target, none, %lm_head.chunks.2.logsumexp, %lm_head.divisor) [ignore_index=-100, label_smoothing=0.0, reduction="sum"]  # model.py:9
  %lm_head.chunks.2.half: f16[1024,2048] = cast(%lm_head.chunks.2.dlogits) [dtype=f16]
  %lm_head.chunks.2.x.f32: f32[1024,4] = cast(%lm_head.chunks.2.x) [dtype=f32]  # model.py:7 @lm_head
  %lm_head.chunks.2.half.f32: f32[1024,2048] = cast(%lm_head.chunks.2.half) [dtype=f32]  # model.py:7 @lm_head
  %lm_head.chunks.2.f32.t: f32[2048,1024] = permute(%lm_head.chunks.2.half.f32) [axes=[1, 0]]  # model.py:7 @lm_head
  %lm_head.chunks.2.dweight: f32[2048,4] = addmm(%lm_head.chunks.1.dweight, %lm_head.chunks.2.f32.t, %lm_head.chunks.2.x.f32)  # model.py:7 @lm_head
  %lm_head.chunks.2.dx: f16[1024,4] = matmul(%lm_head.chunks.2.half, %w)  # model.py:7 @lm_head
  %lm_head.chunks.3.logits_3: f16[1024,2048] = matmul(%lm_head.chunks.3.x, %w.t) [again=true]  # model.py:7 @lm_head
  %lm_head.chunks.3.logits_4: f32[1024,2048] = cast(%lm_head.chunks.3.logits_3) [dtype=f32]
  %lm_head.chunks.3.dlogits: f32[1024,2048] = cross_entropy_backward(%scaled, %lm_head.chunks.3.logits_4, %lm_head.chunks.3.target, none, %lm_head.chunks.3.logsumexp, %lm_head.divisor) [ignore_index=-100, label_smoothing=0.0, reduction="sum"]  # model.py:9
  %lm_head.chunks.3.half: f16[1024,2048] = cast(%lm_head.chunks.3.dlogits) [dtype=f16]
  %lm_head.chunks.3.x.f32: f32[1024,4] = cast(%lm_head.chunks.3.x) [dtype=f32]  # model.py:7 @lm_head
  %lm_head.chunks.3.half.f32: f32[1024,2048] = cast(%lm_head.chunks.3.half) [dtype=f32]  # model.py:7 @lm_head
  %lm_head.chunks.3.f32.t: f32[2048,1024] = permute(%lm_head.chunks.3.half.f32) [axes=[1, 0]]  # model.py:7 @lm_head
  %lm_head.dweight: f32[2048,4] = addmm(%lm_head.chunks.2.dweight, %lm_head.chunks.3.f32.t, %lm_head.chunks.3.x.f32)  # model.py:7 @lm_head
  %lm_head.chunks.3.dx: f16[1024,4] = matmul(%lm_head.chunks.3.half, %w)  # model.py:7 @lm_head
  %dw: f16[2048,4] = cast(%lm_head.dweight) [dtype=f16]  # model.py:7 @lm_head
  %dx: f16[4096,4] = concatenate(%lm_head.chunks.0.dx, %lm_head.chunks.1.dx, %lm_head.chunks.2.dx, %lm_head.chunks.3.dx) [axis=0]  # model.py:7 @lm_head
  output result "loss" = %loss
  output gradient "x" = %dx
  output gradient "w" = %dw
}
