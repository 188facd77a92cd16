// One written by hand, and PyTorch's own behind a residual.
// before
graph joint {
  %m.h.a: f32[8] = input parameter "m.h.a"
  %m.h.b: f32[8] = input parameter "m.h.b"
  %m.n.weight: f32[8] = input parameter "m.n.weight"
  %m.n.bias: f32[8] = input parameter "m.n.bias"
  %a_0: f32[4,8] = input argument "a[0]"
  %a_1: f32[4,8] = input argument "a[1]"
  %tangent: f32[] = input tangent
  %grad.expand: f32[4,8] = expand(%tangent) [shape=[4, 8]]
  %grad.m.sum: f32[] = fused(%grad.expand) [kind="rows"] {
    %grad.expand: f32[4,8] = input operand
    %grad.m.sum: f32[] = sum(%grad.expand) [axes=[0, 1], keepdim=false]
    output result = %grad.m.sum
  }
  %grad.m.expand: f32[4,8] = expand(%grad.m.sum) [shape=[4, 8]]
  %grad.m.h.sum.total: f32[8] = fused(%grad.m.expand) [kind="rows"] {
    %grad.m.expand: f32[4,8] = input operand
    %h.sum.total: f32[8] = sum(%grad.m.expand) [axes=[0], dtype=f32, keepdim=false]
    output result = %h.sum.total
  }
  %m.sum: f32[], %grad.m.h.mul_4: f32[4,8], %grad.m.h.mul_5: f32[4,8], %grad.m.h.sum_4.total: f32[8], %grad.m.h.div_6.2: f32[4,1] = fused(%a_0, %m.h.a, %m.h.b, %grad.m.sum) [kind="rows"] {
    %a: f32[4,8] = input operand
    %m.h.a: f32[8] = input operand
    %m.h.b: f32[8] = input operand
    %grad.m.sum: f32[] = input operand
    %m.h.mean: f32[4,1] = mean(%a) [axes=[1], keepdim=true]
    %m.h.sub: f32[4,8] = sub(%a, %m.h.mean)
    %m.h.mul: f32[4,8] = mul(%m.h.a, %m.h.sub)
    %m.h.pow: f32[4,8] = mul(%m.h.sub, %m.h.sub)
    %m.h.mean_2: f32[4,1] = mean(%m.h.pow) [axes=[1], keepdim=true]
    %m.h.add: f32[4,1] = add(%m.h.mean_2, 1e-06)
    %m.h.sqrt: f32[4,1] = sqrt(%m.h.add)
    %m.h.div: f32[4,8] = div(%m.h.mul, %m.h.sqrt)
    %m.h: f32[4,8] = add(%m.h.div, %m.h.b)
    %m.sum: f32[] = sum(%m.h) [axes=[0, 1], keepdim=false]
    %m.h.div_2: f32[4,8] = div(%m.h.div, %m.h.sqrt)
    %h.neg.narrow: f32[] = neg(%grad.m.sum)
    %m.h.mul_2: f32[4,8] = mul(%h.neg.narrow, %m.h.div_2)
    %h.div.narrow: f32[4,1] = div(%grad.m.sum, %m.h.sqrt)
    %m.h.sum: f32[4,1] = sum(%m.h.mul_2) [axes=[1], keepdim=true]
    %m.h.mul_3: f32[4,1] = mul(%m.h.sqrt, 2)
    %m.h.div_3: f32[4,1] = div(%m.h.sum, %m.h.mul_3)
    %m.h.div_4: f32[4,1] = mul(%m.h.div_3, 0.125)
    %m.h.mul_4: f32[4,8] = mul(%m.h.sub, 2.0)
    %m.h.mul_5: f32[4,8] = mul(%m.h.div_4, %m.h.mul_4)
    %m.h.neg: f32[4,8] = neg(%m.h.mul_5)
    %m.h.sum_2: f32[4,1] = sum(%m.h.neg) [axes=[1], keepdim=true]
    %m.h.mul_6: f32[4,8] = mul(%h.div.narrow, %m.h.a)
    %m.h.mul_7: f32[4,8] = mul(%h.div.narrow, %m.h.sub)
    %h.sum.total: f32[8] = sum(%m.h.mul_7) [axes=[0], dtype=f32, keepdim=false]
    %m.h.neg_2: f32[4,8] = neg(%m.h.mul_6)
    %m.h.sum_3: f32[4,1] = sum(%m.h.neg_2) [axes=[1], keepdim=true]
    %grad.add: f32[4,1] = add(%m.h.sum_2, %m.h.sum_3)
    %m.h.div_5: f32[4,1] = mul(%grad.add, 0.125)
    output result = %m.sum
    output result = %m.h.mul_5
    output result = %m.h.mul_6
    output result = %h.sum.total
    output result = %m.h.div_5
  }
  %sum: f32[], %grad.m.n.layer_norm_backward: f32[4,8], %grad.m.n.layer_norm_backward_2: f32[8], %grad.m.n.layer_norm_backward_3: f32[8], %grad.a_0: f32[4,8] = fused(%a_0, %a_1, %m.n.weight, %m.n.bias, %m.sum, %tangent, %grad.m.h.mul_4, %grad.m.h.mul_5, %grad.m.h.div_6.2) [kind="rows"] {
    %a: f32[4,8] = input operand
    %a_2: f32[4,8] = input operand
    %m.n.weight: f32[8] = input operand
    %m.n.bias: f32[8] = input operand
    %m.sum: f32[] = input operand
    %tangent: f32[] = input operand
    %m.h.mul: f32[4,8] = input operand
    %m.h.mul_2: f32[4,8] = input operand
    %m.h.div: f32[4,1] = input operand
    %m.add: f32[4,8] = add(%a, %a_2)
    %m.n.first_mean: f32[4,1] = mean(%m.add) [axes=[1], keepdim=true]
    %m.n.near: f32[4,8] = sub(%m.add, %m.n.first_mean)
    %m.n.rest: f32[4,1] = mean(%m.n.near) [axes=[1], keepdim=true]
    %m.n: f32[4,1] = add(%m.n.first_mean, %m.n.rest)
    %m.n.square: f32[4,8] = mul(%m.n.near, %m.n.near)
    %m.n.variance: f32[4,1] = mean(%m.n.square) [axes=[1], keepdim=true]
    %m.n.centred: f32[4,8] = sub(%m.add, %m.n)
    %m.n.shifted: f32[4,1] = add(%m.n.variance, 1e-05)
    %m.n_2: f32[4,1] = rsqrt(%m.n.shifted)
    %m.n.normal: f32[4,8] = mul(%m.n.centred, %m.n_2)
    %m.n.scaled: f32[4,8] = mul(%m.n.normal, %m.n.weight)
    %m.n_3: f32[4,8] = add(%m.n.scaled, %m.n.bias)
    %m.pow: f32[4,8] = mul(%m.n_3, %m.n_3)
    %m: f32[4,8] = add(%m.sum, %m.pow)
    %sum: f32[] = sum(%m) [axes=[0, 1], keepdim=false]
    %grad.m.mul: f32[4,8] = mul(%m.n_3, 2.0)
    %grad.m.mul_2: f32[4,8] = mul(%tangent, %grad.m.mul)
    %n.layer_norm_backward.scaled: f32[4,8] = mul(%grad.m.mul_2, %m.n.weight)
    %n.layer_norm_backward.product: f32[4,8] = mul(%n.layer_norm_backward.scaled, %m.n.normal)
    %n.layer_norm_backward.mean_product: f32[4,1] = mean(%n.layer_norm_backward.product) [axes=[1], keepdim=true]
    %n.layer_norm_backward.along: f32[4,8] = mul(%m.n.normal, %n.layer_norm_backward.mean_product)
    %n.layer_norm_backward.mean_gradient: f32[4,1] = mean(%n.layer_norm_backward.scaled) [axes=[1], keepdim=true]
    %n.layer_norm_backward.flat: f32[4,8] = sub(%n.layer_norm_backward.scaled, %n.layer_norm_backward.mean_gradient)
    %n.layer_norm_backward.difference: f32[4,8] = sub(%n.layer_norm_backward.flat, %n.layer_norm_backward.along)
    %m.n.layer_norm_backward: f32[4,8] = mul(%n.layer_norm_backward.difference, %m.n_2)
    %n.layer_norm_backward.weighted: f32[4,8] = mul(%grad.m.mul_2, %m.n.normal)
    %m.n.layer_norm_backward_2: f32[8] = sum(%n.layer_norm_backward.weighted) [axes=[0], dtype=f32, keepdim=false]
    %m.n.layer_norm_backward_3: f32[8] = sum(%grad.m.mul_2) [axes=[0], dtype=f32, keepdim=false]
    %grad.add: f32[4,8] = add(%m.n.layer_norm_backward, %m.h.mul)
    %grad.add_2: f32[4,8] = add(%grad.add, %m.h.mul_2)
    %grad.a: f32[4,8] = add(%grad.add_2, %m.h.div)
    output result = %sum
    output result = %m.n.layer_norm_backward
    output result = %m.n.layer_norm_backward_2
    output result = %m.n.layer_norm_backward_3
    output result = %grad.a
  }
  output result = %sum
  output gradient "m.h.a" = %grad.m.h.sum_4.total
  output gradient "m.h.b" = %grad.m.h.sum.total
  output gradient "m.n.weight" = %grad.m.n.layer_norm_backward_2
  output gradient "m.n.bias" = %grad.m.n.layer_norm_backward_3
  output gradient "argument:a[0]" = %grad.a_0
  output gradient "argument:a[1]" = %grad.m.n.layer_norm_backward
}
// after
graph joint {
  %m.h.a: f32[8] = input parameter "m.h.a"
  %m.h.b: f32[8] = input parameter "m.h.b"
  %m.n.weight: f32[8] = input parameter "m.n.weight"
  %m.n.bias: f32[8] = input parameter "m.n.bias"
  %a_0: f32[4,8] = input argument "a[0]"
  %a_1: f32[4,8] = input argument "a[1]"
  %tangent: f32[] = input tangent
  %grad.expand: f32[4,8] = expand(%tangent) [shape=[4, 8]]
  %grad.m.sum: f32[] = fused(%grad.expand) [kind="rows"] {
    %grad.expand: f32[4,8] = input operand
    %grad.m.sum: f32[] = sum(%grad.expand) [axes=[0, 1], keepdim=false]
    output result = %grad.m.sum
  }
  %grad.m.expand: f32[4,8] = expand(%grad.m.sum) [shape=[4, 8]]
  %grad.m.h.sum.total: f32[8] = fused(%grad.m.expand) [kind="rows"] {
    %grad.m.expand: f32[4,8] = input operand
    %h.sum.total: f32[8] = sum(%grad.m.expand) [axes=[0], dtype=f32, keepdim=false]
    output result = %h.sum.total
  }
  %m.sum: f32[], %grad.m.h.mul_4: f32[4,8], %grad.m.h.mul_5: f32[4,8], %grad.m.h.sum_4.total: f32[8], %grad.m.h.div_6.2: f32[4,1] = fused(%a_0, %m.h.a, %m.h.b, %grad.m.sum) [form="layer_norm", kind="rows"] {
    %a: f32[4,8] = input operand
    %m.h.a: f32[8] = input operand
    %m.h.b: f32[8] = input operand
    %grad.m.sum: f32[] = input operand
    %m.h.mean: f32[4,1] = mean(%a) [axes=[1], keepdim=true]
    %m.h.sub: f32[4,8] = sub(%a, %m.h.mean)
    %m.h.mul: f32[4,8] = mul(%m.h.a, %m.h.sub)
    %m.h.pow: f32[4,8] = mul(%m.h.sub, %m.h.sub)
    %m.h.mean_2: f32[4,1] = mean(%m.h.pow) [axes=[1], keepdim=true]
    %m.h.add: f32[4,1] = add(%m.h.mean_2, 1e-06)
    %m.h.sqrt: f32[4,1] = sqrt(%m.h.add)
    %m.h.div: f32[4,8] = div(%m.h.mul, %m.h.sqrt)
    %m.h: f32[4,8] = add(%m.h.div, %m.h.b)
    %m.sum: f32[] = sum(%m.h) [axes=[0, 1], keepdim=false]
    %m.h.div_2: f32[4,8] = div(%m.h.div, %m.h.sqrt)
    %h.neg.narrow: f32[] = neg(%grad.m.sum)
    %m.h.mul_2: f32[4,8] = mul(%h.neg.narrow, %m.h.div_2)
    %h.div.narrow: f32[4,1] = div(%grad.m.sum, %m.h.sqrt)
    %m.h.sum: f32[4,1] = sum(%m.h.mul_2) [axes=[1], keepdim=true]
    %m.h.mul_3: f32[4,1] = mul(%m.h.sqrt, 2)
    %m.h.div_3: f32[4,1] = div(%m.h.sum, %m.h.mul_3)
    %m.h.div_4: f32[4,1] = mul(%m.h.div_3, 0.125)
    %m.h.mul_4: f32[4,8] = mul(%m.h.sub, 2.0)
    %m.h.mul_5: f32[4,8] = mul(%m.h.div_4, %m.h.mul_4)
    %m.h.neg: f32[4,8] = neg(%m.h.mul_5)
    %m.h.sum_2: f32[4,1] = sum(%m.h.neg) [axes=[1], keepdim=true]
    %m.h.mul_6: f32[4,8] = mul(%h.div.narrow, %m.h.a)
    %m.h.mul_7: f32[4,8] = mul(%h.div.narrow, %m.h.sub)
    %h.sum.total: f32[8] = sum(%m.h.mul_7) [axes=[0], dtype=f32, keepdim=false]
    %m.h.neg_2: f32[4,8] = neg(%m.h.mul_6)
    %m.h.sum_3: f32[4,1] = sum(%m.h.neg_2) [axes=[1], keepdim=true]
    %grad.add: f32[4,1] = add(%m.h.sum_2, %m.h.sum_3)
    %m.h.div_5: f32[4,1] = mul(%grad.add, 0.125)
    output result = %m.sum
    output result = %m.h.mul_5
    output result = %m.h.mul_6
    output result = %h.sum.total
    output result = %m.h.div_5
  }
  %sum: f32[], %grad.m.n.layer_norm_backward: f32[4,8], %grad.m.n.layer_norm_backward_2: f32[8], %grad.m.n.layer_norm_backward_3: f32[8], %grad.a_0: f32[4,8] = fused(%a_0, %a_1, %m.n.weight, %m.n.bias, %m.sum, %tangent, %grad.m.h.mul_4, %grad.m.h.mul_5, %grad.m.h.div_6.2) [form="residual_layer_norm, layer_norm_backward", kind="rows"] {
    %a: f32[4,8] = input operand
    %a_2: f32[4,8] = input operand
    %m.n.weight: f32[8] = input operand
    %m.n.bias: f32[8] = input operand
    %m.sum: f32[] = input operand
    %tangent: f32[] = input operand
    %m.h.mul: f32[4,8] = input operand
    %m.h.mul_2: f32[4,8] = input operand
    %m.h.div: f32[4,1] = input operand
    %m.add: f32[4,8] = add(%a, %a_2)
    %m.n.first_mean: f32[4,1] = mean(%m.add) [axes=[1], keepdim=true]
    %m.n.near: f32[4,8] = sub(%m.add, %m.n.first_mean)
    %m.n.rest: f32[4,1] = mean(%m.n.near) [axes=[1], keepdim=true]
    %m.n: f32[4,1] = add(%m.n.first_mean, %m.n.rest)
    %m.n.square: f32[4,8] = mul(%m.n.near, %m.n.near)
    %m.n.variance: f32[4,1] = mean(%m.n.square) [axes=[1], keepdim=true]
    %m.n.centred: f32[4,8] = sub(%m.add, %m.n)
    %m.n.shifted: f32[4,1] = add(%m.n.variance, 1e-05)
    %m.n_2: f32[4,1] = rsqrt(%m.n.shifted)
    %m.n.normal: f32[4,8] = mul(%m.n.centred, %m.n_2)
    %m.n.scaled: f32[4,8] = mul(%m.n.normal, %m.n.weight)
    %m.n_3: f32[4,8] = add(%m.n.scaled, %m.n.bias)
    %m.pow: f32[4,8] = mul(%m.n_3, %m.n_3)
    %m: f32[4,8] = add(%m.sum, %m.pow)
    %sum: f32[] = sum(%m) [axes=[0, 1], keepdim=false]
    %grad.m.mul: f32[4,8] = mul(%m.n_3, 2.0)
    %grad.m.mul_2: f32[4,8] = mul(%tangent, %grad.m.mul)
    %n.layer_norm_backward.scaled: f32[4,8] = mul(%grad.m.mul_2, %m.n.weight)
    %n.layer_norm_backward.product: f32[4,8] = mul(%n.layer_norm_backward.scaled, %m.n.normal)
    %n.layer_norm_backward.mean_product: f32[4,1] = mean(%n.layer_norm_backward.product) [axes=[1], keepdim=true]
    %n.layer_norm_backward.along: f32[4,8] = mul(%m.n.normal, %n.layer_norm_backward.mean_product)
    %n.layer_norm_backward.mean_gradient: f32[4,1] = mean(%n.layer_norm_backward.scaled) [axes=[1], keepdim=true]
    %n.layer_norm_backward.flat: f32[4,8] = sub(%n.layer_norm_backward.scaled, %n.layer_norm_backward.mean_gradient)
    %n.layer_norm_backward.difference: f32[4,8] = sub(%n.layer_norm_backward.flat, %n.layer_norm_backward.along)
    %m.n.layer_norm_backward: f32[4,8] = mul(%n.layer_norm_backward.difference, %m.n_2)
    %n.layer_norm_backward.weighted: f32[4,8] = mul(%grad.m.mul_2, %m.n.normal)
    %m.n.layer_norm_backward_2: f32[8] = sum(%n.layer_norm_backward.weighted) [axes=[0], dtype=f32, keepdim=false]
    %m.n.layer_norm_backward_3: f32[8] = sum(%grad.m.mul_2) [axes=[0], dtype=f32, keepdim=false]
    %grad.add: f32[4,8] = add(%m.n.layer_norm_backward, %m.h.mul)
    %grad.add_2: f32[4,8] = add(%grad.add, %m.h.mul_2)
    %grad.a: f32[4,8] = add(%grad.add_2, %m.h.div)
    output result = %sum
    output result = %m.n.layer_norm_backward
    output result = %m.n.layer_norm_backward_2
    output result = %m.n.layer_norm_backward_3
    output result = %grad.a
  }
  output result = %sum
  output gradient "m.h.a" = %grad.m.h.sum_4.total
  output gradient "m.h.b" = %grad.m.h.sum.total
  output gradient "m.n.weight" = %grad.m.n.layer_norm_backward_2
  output gradient "m.n.bias" = %grad.m.n.layer_norm_backward_3
  output gradient "argument:a[0]" = %grad.a_0
  output gradient "argument:a[1]" = %grad.m.n.layer_norm_backward
}
