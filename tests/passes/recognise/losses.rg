// Cross-entropy and log-softmax with their derivatives.
// before
graph joint {
  %a_0: f32[4,8] = input argument "a[0]"
  %a_1: i64[4] = input argument "a[1]"
  %tangent: f32[] = input tangent
  %m.cross_entropy.a_1.shaped: i64[4,1] = reshape(%a_1) [shape=[4, 1]]
  %m.cross_entropy.counted: b8[4,1], %m.cross_entropy.total: f32[], %m.cross_entropy_3: f32[], %m.sum: f32[], %grad.add: f32[4,8], %grad.m.cross_entropy_backward.slope: f32[4,8] = fused(%m.cross_entropy.a_1.shaped, %a_0, %tangent) [kind="rows"] {
    %cross_entropy.a.shaped: i64[4,1] = input operand
    %a: f32[4,8] = input operand
    %tangent: f32[] = input operand
    %m.cross_entropy.counted: b8[4,1] = ne(%cross_entropy.a.shaped, -100)
    %m.cross_entropy.target: i64[4,1] = check_index(%cross_entropy.a.shaped) [extent=8, ignore=-100]
    %cross_entropy.target.small: i32[4,1] = cast(%m.cross_entropy.target) [dtype=i32]
    %m.cross_entropy.class: i32[8] = iota() [dtype=i32, length=8, start=0, step=1]
    %m.cross_entropy.hit: b8[4,8] = eq(%m.cross_entropy.class, %cross_entropy.target.small)
    %m.cross_entropy.max: f32[4,1] = amax(%a) [axes=[1], keepdim=true]
    %m.cross_entropy.shifted: f32[4,8] = sub(%a, %m.cross_entropy.max)
    %m.cross_entropy.exp: f32[4,8] = exp(%m.cross_entropy.shifted)
    %m.cross_entropy.sum: f32[4,1] = sum(%m.cross_entropy.exp) [axes=[1], keepdim=true]
    %m.cross_entropy.log: f32[4,1] = log(%m.cross_entropy.sum)
    %m.cross_entropy.at_target: f32[4,8] = where(%m.cross_entropy.hit, %m.cross_entropy.shifted, 0)
    %m.cross_entropy.chosen: f32[4,1] = sum(%m.cross_entropy.at_target) [axes=[1], keepdim=true]
    %m.cross_entropy.distance: f32[4,1] = sub(%m.cross_entropy.log, %m.cross_entropy.chosen)
    %m.cross_entropy.each: f32[4,1] = where(%m.cross_entropy.counted, %m.cross_entropy.distance, 0)
    %m.cross_entropy.total: f32[] = sum(%m.cross_entropy.each) [axes=[0, 1], keepdim=false]
    %m.cross_entropy.row_weight: f32[4,1] = cast(%m.cross_entropy.counted) [dtype=f32]
    %m.cross_entropy: f32[] = sum(%m.cross_entropy.row_weight) [axes=[0, 1], keepdim=false]
    %m.log_softmax: f32[4,8] = sub(%m.cross_entropy.shifted, %m.cross_entropy.log)
    %m.mul: f32[4,8] = mul(%m.log_softmax, %a)
    %m.sum: f32[] = sum(%m.mul) [axes=[0, 1], keepdim=false]
    %grad.m.mul: f32[4,8] = mul(%tangent, %m.log_softmax)
    %grad.m.mul_2: f32[4,8] = mul(%tangent, %a)
    %m.log_softmax_backward_data.sum: f32[4,1] = sum(%grad.m.mul_2) [axes=[1], keepdim=true]
    %m.log_softmax_backward_data.exp: f32[4,8] = exp(%m.log_softmax)
    %m.log_softmax_backward_data.along: f32[4,8] = mul(%m.log_softmax_backward_data.exp, %m.log_softmax_backward_data.sum)
    %grad.m.log_softmax_backward_data: f32[4,8] = sub(%grad.m.mul_2, %m.log_softmax_backward_data.along)
    %grad.add: f32[4,8] = add(%grad.m.mul, %grad.m.log_softmax_backward_data)
    %cross_entropy_backward.target.small: i32[4,1] = cast(%cross_entropy.a.shaped) [dtype=i32]
    %m.cross_entropy_backward.hit: b8[4,8] = eq(%m.cross_entropy.class, %cross_entropy_backward.target.small)
    %cross_entropy_backward.hit.number: f32[4,8] = cast(%m.cross_entropy_backward.hit) [dtype=f32]
    %m.cross_entropy_backward.slope: f32[4,8] = sub(%m.log_softmax_backward_data.exp, %cross_entropy_backward.hit.number)
    output result = %m.cross_entropy.counted
    output result = %m.cross_entropy.total
    output result = %m.cross_entropy
    output result = %m.sum
    output result = %grad.add
    output result = %m.cross_entropy_backward.slope
  }
  %m: f32[] = fused(%m.cross_entropy.total, %m.cross_entropy_3, %m.sum) [kind="rows"] {
    %m.cross_entropy.total: f32[] = input operand
    %m.cross_entropy: f32[] = input operand
    %m.sum: f32[] = input operand
    %m.cross_entropy_2: f32[] = div(%m.cross_entropy.total, %m.cross_entropy)
    %m: f32[] = add(%m.cross_entropy_2, %m.sum)
    output result = %m
  }
  %grad.a_0: f32[4,8] = fused(%tangent, %m.cross_entropy_3, %grad.m.cross_entropy_backward.slope, %m.cross_entropy.counted, %grad.add) [kind="rows"] {
    %tangent: f32[] = input operand
    %m.cross_entropy: f32[] = input operand
    %m.cross_entropy_backward.slope: f32[4,8] = input operand
    %m.cross_entropy.counted: b8[4,1] = input operand
    %grad.add: f32[4,8] = input operand
    %m.cross_entropy_backward.upstream: f32[] = div(%tangent, %m.cross_entropy)
    %m.cross_entropy_backward.scaled: f32[4,8] = mul(%m.cross_entropy_backward.upstream, %m.cross_entropy_backward.slope)
    %grad.m.cross_entropy_backward: f32[4,8] = where(%m.cross_entropy.counted, %m.cross_entropy_backward.scaled, 0)
    %grad.a: f32[4,8] = add(%grad.add, %grad.m.cross_entropy_backward)
    output result = %grad.a
  }
  output result = %m
  output gradient "argument:a[0]" = %grad.a_0
}
// after
graph joint {
  %a_0: f32[4,8] = input argument "a[0]"
  %a_1: i64[4] = input argument "a[1]"
  %tangent: f32[] = input tangent
  %m.cross_entropy.a_1.shaped: i64[4,1] = reshape(%a_1) [shape=[4, 1]]
  %m.cross_entropy.counted: b8[4,1], %m.cross_entropy.total: f32[], %m.cross_entropy_3: f32[], %m.sum: f32[], %grad.add: f32[4,8], %grad.m.cross_entropy_backward.slope: f32[4,8] = fused(%m.cross_entropy.a_1.shaped, %a_0, %tangent) [form="cross_entropy, cross_entropy_backward", kind="rows"] {
    %cross_entropy.a.shaped: i64[4,1] = input operand
    %a: f32[4,8] = input operand
    %tangent: f32[] = input operand
    %m.cross_entropy.counted: b8[4,1] = ne(%cross_entropy.a.shaped, -100)
    %m.cross_entropy.target: i64[4,1] = check_index(%cross_entropy.a.shaped) [extent=8, ignore=-100]
    %cross_entropy.target.small: i32[4,1] = cast(%m.cross_entropy.target) [dtype=i32]
    %m.cross_entropy.class: i32[8] = iota() [dtype=i32, length=8, start=0, step=1]
    %m.cross_entropy.hit: b8[4,8] = eq(%m.cross_entropy.class, %cross_entropy.target.small)
    %m.cross_entropy.max: f32[4,1] = amax(%a) [axes=[1], keepdim=true]
    %m.cross_entropy.shifted: f32[4,8] = sub(%a, %m.cross_entropy.max)
    %m.cross_entropy.exp: f32[4,8] = exp(%m.cross_entropy.shifted)
    %m.cross_entropy.sum: f32[4,1] = sum(%m.cross_entropy.exp) [axes=[1], keepdim=true]
    %m.cross_entropy.log: f32[4,1] = log(%m.cross_entropy.sum)
    %m.cross_entropy.at_target: f32[4,8] = where(%m.cross_entropy.hit, %m.cross_entropy.shifted, 0)
    %m.cross_entropy.chosen: f32[4,1] = sum(%m.cross_entropy.at_target) [axes=[1], keepdim=true]
    %m.cross_entropy.distance: f32[4,1] = sub(%m.cross_entropy.log, %m.cross_entropy.chosen)
    %m.cross_entropy.each: f32[4,1] = where(%m.cross_entropy.counted, %m.cross_entropy.distance, 0)
    %m.cross_entropy.total: f32[] = sum(%m.cross_entropy.each) [axes=[0, 1], keepdim=false]
    %m.cross_entropy.row_weight: f32[4,1] = cast(%m.cross_entropy.counted) [dtype=f32]
    %m.cross_entropy: f32[] = sum(%m.cross_entropy.row_weight) [axes=[0, 1], keepdim=false]
    %m.log_softmax: f32[4,8] = sub(%m.cross_entropy.shifted, %m.cross_entropy.log)
    %m.mul: f32[4,8] = mul(%m.log_softmax, %a)
    %m.sum: f32[] = sum(%m.mul) [axes=[0, 1], keepdim=false]
    %grad.m.mul: f32[4,8] = mul(%tangent, %m.log_softmax)
    %grad.m.mul_2: f32[4,8] = mul(%tangent, %a)
    %m.log_softmax_backward_data.sum: f32[4,1] = sum(%grad.m.mul_2) [axes=[1], keepdim=true]
    %m.log_softmax_backward_data.exp: f32[4,8] = exp(%m.log_softmax)
    %m.log_softmax_backward_data.along: f32[4,8] = mul(%m.log_softmax_backward_data.exp, %m.log_softmax_backward_data.sum)
    %grad.m.log_softmax_backward_data: f32[4,8] = sub(%grad.m.mul_2, %m.log_softmax_backward_data.along)
    %grad.add: f32[4,8] = add(%grad.m.mul, %grad.m.log_softmax_backward_data)
    %cross_entropy_backward.target.small: i32[4,1] = cast(%cross_entropy.a.shaped) [dtype=i32]
    %m.cross_entropy_backward.hit: b8[4,8] = eq(%m.cross_entropy.class, %cross_entropy_backward.target.small)
    %cross_entropy_backward.hit.number: f32[4,8] = cast(%m.cross_entropy_backward.hit) [dtype=f32]
    %m.cross_entropy_backward.slope: f32[4,8] = sub(%m.log_softmax_backward_data.exp, %cross_entropy_backward.hit.number)
    output result = %m.cross_entropy.counted
    output result = %m.cross_entropy.total
    output result = %m.cross_entropy
    output result = %m.sum
    output result = %grad.add
    output result = %m.cross_entropy_backward.slope
  }
  %m: f32[] = fused(%m.cross_entropy.total, %m.cross_entropy_3, %m.sum) [kind="rows"] {
    %m.cross_entropy.total: f32[] = input operand
    %m.cross_entropy: f32[] = input operand
    %m.sum: f32[] = input operand
    %m.cross_entropy_2: f32[] = div(%m.cross_entropy.total, %m.cross_entropy)
    %m: f32[] = add(%m.cross_entropy_2, %m.sum)
    output result = %m
  }
  %grad.a_0: f32[4,8] = fused(%tangent, %m.cross_entropy_3, %grad.m.cross_entropy_backward.slope, %m.cross_entropy.counted, %grad.add) [kind="rows"] {
    %tangent: f32[] = input operand
    %m.cross_entropy: f32[] = input operand
    %m.cross_entropy_backward.slope: f32[4,8] = input operand
    %m.cross_entropy.counted: b8[4,1] = input operand
    %grad.add: f32[4,8] = input operand
    %m.cross_entropy_backward.upstream: f32[] = div(%tangent, %m.cross_entropy)
    %m.cross_entropy_backward.scaled: f32[4,8] = mul(%m.cross_entropy_backward.upstream, %m.cross_entropy_backward.slope)
    %grad.m.cross_entropy_backward: f32[4,8] = where(%m.cross_entropy.counted, %m.cross_entropy_backward.scaled, 0)
    %grad.a: f32[4,8] = add(%grad.add, %grad.m.cross_entropy_backward)
    output result = %grad.a
  }
  output result = %m
  output gradient "argument:a[0]" = %grad.a_0
}
