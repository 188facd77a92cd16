// Of another value's square, of another row's sum, a gate without its own input, a choice that is not random: no names.
// before
graph joint {
  %a_0: f32[4,8] = input argument "a[0]"
  %a_1: f32[4,8] = input argument "a[1]"
  %m.sum: f32[], %m.sum_3: f32[], %m.sum_4: f32[], %m.sum_5: f32[] = fused(%a_1, %a_0) [kind="rows"] {
    %a: f32[4,8] = input operand
    %a_2: f32[4,8] = input operand
    %m.pow: f32[4,8] = mul(%a, %a)
    %m.mean: f32[4,1] = mean(%m.pow) [axes=[1], keepdim=true]
    %m.add: f32[4,1] = add(%m.mean, 1e-06)
    %m.rsqrt: f32[4,1] = rsqrt(%m.add)
    %m.mul: f32[4,8] = mul(%a_2, %m.rsqrt)
    %m.sum: f32[] = sum(%m.mul) [axes=[0, 1], keepdim=false]
    %m.exp: f32[4,8] = exp(%a_2)
    %m.exp_2: f32[4,8] = exp(%a)
    %m.sum_2: f32[4,1] = sum(%m.exp_2) [axes=[1], keepdim=true]
    %m.div: f32[4,8] = div(%m.exp, %m.sum_2)
    %m.sum_3: f32[] = sum(%m.div) [axes=[0, 1], keepdim=false]
    %m.sigmoid: f32[4,8] = sigmoid(%a_2)
    %m.mul_2: f32[4,8] = mul(%m.sigmoid, %a)
    %m.sum_4: f32[] = sum(%m.mul_2) [axes=[0, 1], keepdim=false]
    %m.gt: b8[4,8] = gt(%a_2, 0.0)
    %m.where: f32[4,8] = where(%m.gt, %a, 0.0)
    %m.sum_5: f32[] = sum(%m.where) [axes=[0, 1], keepdim=false]
    output result = %m.sum
    output result = %m.sum_3
    output result = %m.sum_4
    output result = %m.sum_5
  }
  %m: f32[] = fused(%m.sum, %m.sum_3, %m.sum_4, %m.sum_5) [kind="rows"] {
    %m.sum: f32[] = input operand
    %m.sum_2: f32[] = input operand
    %m.sum_3: f32[] = input operand
    %m.sum_4: f32[] = input operand
    %m.add: f32[] = add(%m.sum, %m.sum_2)
    %m.add_2: f32[] = add(%m.add, %m.sum_3)
    %m: f32[] = add(%m.add_2, %m.sum_4)
    output result = %m
  }
  output result = %m
}
// after
graph joint {
  %a_0: f32[4,8] = input argument "a[0]"
  %a_1: f32[4,8] = input argument "a[1]"
  %m.sum: f32[], %m.sum_3: f32[], %m.sum_4: f32[], %m.sum_5: f32[] = fused(%a_1, %a_0) [kind="rows"] {
    %a: f32[4,8] = input operand
    %a_2: f32[4,8] = input operand
    %m.pow: f32[4,8] = mul(%a, %a)
    %m.mean: f32[4,1] = mean(%m.pow) [axes=[1], keepdim=true]
    %m.add: f32[4,1] = add(%m.mean, 1e-06)
    %m.rsqrt: f32[4,1] = rsqrt(%m.add)
    %m.mul: f32[4,8] = mul(%a_2, %m.rsqrt)
    %m.sum: f32[] = sum(%m.mul) [axes=[0, 1], keepdim=false]
    %m.exp: f32[4,8] = exp(%a_2)
    %m.exp_2: f32[4,8] = exp(%a)
    %m.sum_2: f32[4,1] = sum(%m.exp_2) [axes=[1], keepdim=true]
    %m.div: f32[4,8] = div(%m.exp, %m.sum_2)
    %m.sum_3: f32[] = sum(%m.div) [axes=[0, 1], keepdim=false]
    %m.sigmoid: f32[4,8] = sigmoid(%a_2)
    %m.mul_2: f32[4,8] = mul(%m.sigmoid, %a)
    %m.sum_4: f32[] = sum(%m.mul_2) [axes=[0, 1], keepdim=false]
    %m.gt: b8[4,8] = gt(%a_2, 0.0)
    %m.where: f32[4,8] = where(%m.gt, %a, 0.0)
    %m.sum_5: f32[] = sum(%m.where) [axes=[0, 1], keepdim=false]
    output result = %m.sum
    output result = %m.sum_3
    output result = %m.sum_4
    output result = %m.sum_5
  }
  %m: f32[] = fused(%m.sum, %m.sum_3, %m.sum_4, %m.sum_5) [kind="rows"] {
    %m.sum: f32[] = input operand
    %m.sum_2: f32[] = input operand
    %m.sum_3: f32[] = input operand
    %m.sum_4: f32[] = input operand
    %m.add: f32[] = add(%m.sum, %m.sum_2)
    %m.add_2: f32[] = add(%m.add, %m.sum_3)
    %m: f32[] = add(%m.add_2, %m.sum_4)
    output result = %m
  }
  output result = %m
}
