// Left alone: logits that are returned, a loss a row, a small loss, logits with another reader.
// before
graph joint {
  %x: f32[1200,4] = input argument "x"
  %w: f32[4,2048] = input parameter "w"
  %target: i64[1200] = input argument "target"
  %few_targets: i64[1200] = input argument "few_targets"
  %tangent: f32[] = input tangent "loss"
  %kept: f32[1200,2048] = matmul(%x, %w)
  %a: f32[], %a.lse: f32[1200], %a.divisor: f32[] = cross_entropy(%kept, %target, none) [ignore_index=-100, label_smoothing=0.0, reduction="mean"]
  %each: f32[1200,2048] = matmul(%x, %w)
  %b: f32[1200], %b.lse: f32[1200], %b.divisor: f32[] = cross_entropy(%each, %target, none) [ignore_index=-100, label_smoothing=0.0, reduction="none"]
  %few: f32[4,64] = slice(%w) [axis=1, start=0, step=1, stop=64]
  %small: f32[1200,64] = matmul(%x, %few)
  %c: f32[], %c.lse: f32[1200], %c.divisor: f32[] = cross_entropy(%small, %few_targets, none) [ignore_index=-100, label_smoothing=0.0, reduction="mean"]
  %read: f32[1200,2048] = matmul(%x, %w)
  %d: f32[], %d.lse: f32[1200], %d.divisor: f32[] = cross_entropy(%read, %target, none) [ignore_index=-100, label_smoothing=0.0, reduction="mean"]
  %largest: f32[1200] = amax(%read) [axes=[1], keepdim=false]
  %clamped: f32[1200,2048] = matmul(%x, %w)
  %e: f32[], %e.lse: f32[1200], %e.divisor: f32[] = cross_entropy(%clamped, %target, none) [ignore_index=-100, label_smoothing=0.0, reduction="mean"]
  %e.g: f32[1200,2048] = cross_entropy_backward(%tangent, %clamped, %target, none, %e.lse, %e.divisor) [ignore_index=-100, label_smoothing=0.0, reduction="mean"]
  %e.clamped: f32[1200,2048] = minimum(%e.g, 0.5)
  %w.t: f32[2048,4] = permute(%w) [axes=[1, 0]]
  %dx: f32[1200,4] = matmul(%e.clamped, %w.t)
  output result "kept" = %kept
  output result "a" = %a
  output result "b" = %b
  output result "c" = %c
  output result "d" = %d
  output result "loss" = %e
  output result "largest" = %largest
  output gradient "x" = %dx
}
// after
graph joint {
  %x: f32[1200,4] = input argument "x"
  %w: f32[4,2048] = input parameter "w"
  %target: i64[1200] = input argument "target"
  %few_targets: i64[1200] = input argument "few_targets"
  %tangent: f32[] = input tangent "loss"
  %kept: f32[1200,2048] = matmul(%x, %w)
  %a: f32[], %a.lse: f32[1200], %a.divisor: f32[] = cross_entropy(%kept, %target, none) [ignore_index=-100, label_smoothing=0.0, reduction="mean"]
  %each: f32[1200,2048] = matmul(%x, %w)
  %b: f32[1200], %b.lse: f32[1200], %b.divisor: f32[] = cross_entropy(%each, %target, none) [ignore_index=-100, label_smoothing=0.0, reduction="none"]
  %few: f32[4,64] = slice(%w) [axis=1, start=0, step=1, stop=64]
  %small: f32[1200,64] = matmul(%x, %few)
  %c: f32[], %c.lse: f32[1200], %c.divisor: f32[] = cross_entropy(%small, %few_targets, none) [ignore_index=-100, label_smoothing=0.0, reduction="mean"]
  %read: f32[1200,2048] = matmul(%x, %w)
  %d: f32[], %d.lse: f32[1200], %d.divisor: f32[] = cross_entropy(%read, %target, none) [ignore_index=-100, label_smoothing=0.0, reduction="mean"]
  %largest: f32[1200] = amax(%read) [axes=[1], keepdim=false]
  %clamped: f32[1200,2048] = matmul(%x, %w)
  %e: f32[], %e.lse: f32[1200], %e.divisor: f32[] = cross_entropy(%clamped, %target, none) [ignore_index=-100, label_smoothing=0.0, reduction="mean"]
  %e.g: f32[1200,2048] = cross_entropy_backward(%tangent, %clamped, %target, none, %e.lse, %e.divisor) [ignore_index=-100, label_smoothing=0.0, reduction="mean"]
  %e.clamped: f32[1200,2048] = minimum(%e.g, 0.5)
  %w.t: f32[2048,4] = permute(%w) [axes=[1, 0]]
  %dx: f32[1200,4] = matmul(%e.clamped, %w.t)
  output result "kept" = %kept
  output result "a" = %a
  output result "b" = %b
  output result "c" = %c
  output result "d" = %d
  output result "loss" = %e
  output result "largest" = %largest
  output gradient "x" = %dx
}
