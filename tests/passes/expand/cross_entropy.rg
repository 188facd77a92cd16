// One row of logits is read once: the class is found by comparison, not gathered.
// tolerance 1e-5
// before
graph g {
  %logits: f32[3,5] = input argument "logits"
  %target: i64[3] = input argument "target"
  %t: f32[] = input tangent "loss"
  %loss: f32[], %lse: f32[3], %divisor: f32[] = cross_entropy(%logits, %target, none) [ignore_index=-100, label_smoothing=0.0, reduction="mean"]
  %d: f32[3,5] = cross_entropy_backward(%t, %logits, %target, none, %lse, %divisor) [ignore_index=-100, label_smoothing=0.0, reduction="mean"]
  output result "loss" = %loss
  output gradient "argument:logits" = %d
}
// after
graph g {
  %logits: f32[3,5] = input argument "logits"
  %target: i64[3] = input argument "target"
  %t: f32[] = input tangent "loss"
  %loss.target.shaped: i64[3,1] = reshape(%target) [shape=[3, 1]]
  %loss.counted: b8[3,1] = ne(%loss.target.shaped, -100)
  %loss.target: i64[3,1] = check_index(%loss.target.shaped) [extent=5, ignore=-100]
  %loss.target.small: i32[3,1] = cast(%loss.target) [dtype=i32]
  %loss.class: i32[5] = iota() [dtype=i32, length=5, start=0, step=1]
  %loss.hit: b8[3,5] = eq(%loss.class, %loss.target.small)
  %loss.row_weight: f32[3,1] = cast(%loss.counted) [dtype=f32]
  %loss.max: f32[3,1] = amax(%logits) [axes=[1], keepdim=true]
  %loss.shifted: f32[3,5] = sub(%logits, %loss.max)
  %loss.exp: f32[3,5] = exp(%loss.shifted)
  %loss.sum: f32[3,1] = sum(%loss.exp) [axes=[1], keepdim=true]
  %loss.log: f32[3,1] = log(%loss.sum)
  %loss.logsumexp.row: f32[3,1] = add(%loss.max, %loss.log)
  %lse: f32[3] = reshape(%loss.logsumexp.row) [shape=[3]]
  %loss.at_target: f32[3,5] = where(%loss.hit, %loss.shifted, 0)
  %loss.chosen: f32[3,1] = sum(%loss.at_target) [axes=[1], keepdim=true]
  %loss.distance: f32[3,1] = sub(%loss.log, %loss.chosen)
  %loss.each: f32[3,1] = where(%loss.counted, %loss.distance, 0)
  %loss.total: f32[] = sum(%loss.each) [axes=[0, 1], keepdim=false]
  %divisor: f32[] = sum(%loss.row_weight) [axes=[0, 1], keepdim=false]
  %loss: f32[] = div(%loss.total, %divisor)
  %d.target.shaped: i64[3,1] = reshape(%target) [shape=[3, 1]]
  %d.counted: b8[3,1] = ne(%d.target.shaped, -100)
  %d.target.small: i32[3,1] = cast(%d.target.shaped) [dtype=i32]
  %d.class: i32[5] = iota() [dtype=i32, length=5, start=0, step=1]
  %d.hit: b8[3,5] = eq(%d.class, %d.target.small)
  %d.row_weight: f32[3,1] = cast(%d.counted) [dtype=f32]
  %d.shifted: f32[3,5] = sub(%logits, %loss.max)
  %d.log_probability: f32[3,5] = sub(%d.shifted, %loss.log)
  %d.probability: f32[3,5] = exp(%d.log_probability)
  %d.hit.number: f32[3,5] = cast(%d.hit) [dtype=f32]
  %d.slope: f32[3,5] = sub(%d.probability, %d.hit.number)
  %d.upstream: f32[] = div(%t, %divisor)
  %d.scaled: f32[3,5] = mul(%d.upstream, %d.slope)
  %d: f32[3,5] = where(%d.counted, %d.scaled, 0)
  output result "loss" = %loss
  output gradient "argument:logits" = %d
}
