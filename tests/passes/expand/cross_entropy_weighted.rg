// Class weights and smoothing, no reduction.
// tolerance 1e-5
// before
graph g {
  %logits: bf16[3,5] = input argument "logits"
  %target: i64[3] = input argument "target"
  %weight: bf16[5] = input buffer "weight"
  %t: bf16[3] = input tangent "loss"
  %loss: bf16[3], %lse: f32[3], %divisor: f32[] = cross_entropy(%logits, %target, %weight) [ignore_index=1, label_smoothing=0.1, reduction="none"]
  %d: bf16[3,5] = cross_entropy_backward(%t, %logits, %target, %weight, %lse, %divisor) [ignore_index=1, label_smoothing=0.1, reduction="none"]
  output result "loss" = %loss
  output gradient "argument:logits" = %d
}
// after
graph g {
  %logits: bf16[3,5] = input argument "logits"
  %target: i64[3] = input argument "target"
  %weight: bf16[5] = input buffer "weight"
  %t: bf16[3] = input tangent "loss"
  %loss.logits.f32: f32[3,5] = cast(%logits) [dtype=f32]
  %loss.target.shaped: i64[3,1] = reshape(%target) [shape=[3, 1]]
  %loss.counted: b8[3,1] = ne(%loss.target.shaped, 1)
  %loss.target: i64[3,1] = check_index(%loss.target.shaped) [extent=5, ignore=1]
  %loss.target.small: i32[3,1] = cast(%loss.target) [dtype=i32]
  %loss.class: i32[5] = iota() [dtype=i32, length=5, start=0, step=1]
  %loss.hit: b8[3,5] = eq(%loss.class, %loss.target.small)
  %loss.weight.f32: f32[5] = cast(%weight) [dtype=f32]
  %loss.weight_at_target: f32[3,5] = where(%loss.hit, %loss.weight.f32, 0)
  %loss.row_weight.any: f32[3,1] = sum(%loss.weight_at_target) [axes=[1], keepdim=true]
  %loss.row_weight: f32[3,1] = where(%loss.counted, %loss.row_weight.any, 0)
  %loss.max: f32[3,1] = amax(%loss.logits.f32) [axes=[1], keepdim=true]
  %loss.shifted: f32[3,5] = sub(%loss.logits.f32, %loss.max)
  %loss.exp: f32[3,5] = exp(%loss.shifted)
  %loss.sum: f32[3,1] = sum(%loss.exp) [axes=[1], keepdim=true]
  %loss.log: f32[3,1] = log(%loss.sum)
  %loss.logsumexp.row: f32[3,1] = add(%loss.max, %loss.log)
  %lse: f32[3] = reshape(%loss.logsumexp.row) [shape=[3]]
  %loss.at_target: f32[3,5] = where(%loss.hit, %loss.shifted, 0)
  %loss.chosen: f32[3,1] = sum(%loss.at_target) [axes=[1], keepdim=true]
  %loss.distance: f32[3,1] = sub(%loss.log, %loss.chosen)
  %loss.distance.weighted: f32[3,1] = mul(%loss.distance, %loss.row_weight)
  %loss.log_probability: f32[3,5] = sub(%loss.shifted, %loss.log)
  %loss.spread: f32[3,5] = mul(%loss.log_probability, %loss.weight.f32)
  %loss.spread_sum: f32[3,1] = sum(%loss.spread) [axes=[1], keepdim=true]
  %loss.spread_loss: f32[3,1] = neg(%loss.spread_sum)
  %loss.near: f32[3,1] = mul(%loss.distance.weighted, 0.9)
  %loss.far: f32[3,1] = mul(%loss.spread_loss, 0.02)
  %loss.distance.smooth: f32[3,1] = add(%loss.near, %loss.far)
  %loss.each: f32[3,1] = where(%loss.counted, %loss.distance.smooth, 0)
  %divisor: f32[] = full() [dtype=f32, shape=[], value=1.0]
  %loss.each.bf16: bf16[3,1] = cast(%loss.each) [dtype=bf16]
  %loss: bf16[3] = reshape(%loss.each.bf16) [shape=[3]]
  %d.t.f32: f32[3] = cast(%t) [dtype=f32]
  %d.logits.f32: f32[3,5] = cast(%logits) [dtype=f32]
  %d.target.shaped: i64[3,1] = reshape(%target) [shape=[3, 1]]
  %d.counted: b8[3,1] = ne(%d.target.shaped, 1)
  %d.target.small: i32[3,1] = cast(%d.target.shaped) [dtype=i32]
  %d.class: i32[5] = iota() [dtype=i32, length=5, start=0, step=1]
  %d.hit: b8[3,5] = eq(%d.class, %d.target.small)
  %d.weight.f32: f32[5] = cast(%weight) [dtype=f32]
  %d.weight_at_target: f32[3,5] = where(%d.hit, %d.weight.f32, 0)
  %d.row_weight.any: f32[3,1] = sum(%d.weight_at_target) [axes=[1], keepdim=true]
  %d.row_weight: f32[3,1] = where(%d.counted, %d.row_weight.any, 0)
  %d.shifted: f32[3,5] = sub(%d.logits.f32, %loss.max)
  %d.log_probability: f32[3,5] = sub(%d.shifted, %loss.log)
  %d.probability: f32[3,5] = exp(%d.log_probability)
  %d.hit.number: f32[3,5] = cast(%d.hit) [dtype=f32]
  %d.slope: f32[3,5] = sub(%d.probability, %d.hit.number)
  %d.slope.weighted: f32[3,5] = mul(%d.slope, %d.row_weight)
  %d.near: f32[3,5] = mul(%d.slope.weighted, 0.9)
  %d.weight_total: f32[] = sum(%d.weight.f32) [axes=[0], keepdim=false]
  %d.share: f32[3,5] = mul(%d.probability, %d.weight_total)
  %d.spread: f32[3,5] = sub(%d.share, %d.weight.f32)
  %d.far: f32[3,5] = mul(%d.spread, 0.02)
  %d.slope.smooth: f32[3,5] = add(%d.near, %d.far)
  %d.upstream: f32[3] = div(%d.t.f32, %divisor)
  %d.upstream.shaped: f32[3,1] = reshape(%d.upstream) [shape=[3, 1]]
  %d.scaled: f32[3,5] = mul(%d.upstream.shaped, %d.slope.smooth)
  %d.dlogits: f32[3,5] = where(%d.counted, %d.scaled, 0)
  %d: bf16[3,5] = cast(%d.dlogits) [dtype=bf16]
  output result "loss" = %loss
  output gradient "argument:logits" = %d
}
