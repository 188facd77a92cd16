// By hand, and as one op.
// before
graph joint {
  %a_0: f32[4,8] = input argument "a[0]"
  %a_1: f32[4,8] = input argument "a[1]"
  %tangent: f32[] = input tangent
  %m: f32[], %grad.a_1: f32[4,8] = fused(%a_0, %a_1, %tangent) [kind="rows"] {
    %a: f32[4,8] = input operand
    %a_2: f32[4,8] = input operand
    %tangent: f32[] = input operand
    %m.amax: f32[4,1] = amax(%a) [axes=[1], keepdim=true]
    %m.sub: f32[4,8] = sub(%a, %m.amax)
    %m.exp: f32[4,8] = exp(%m.sub)
    %m.sum: f32[4,1] = sum(%m.exp) [axes=[1], keepdim=true]
    %m.div: f32[4,8] = div(%m.exp, %m.sum)
    %m.softmax.max: f32[4,1] = amax(%a_2) [axes=[1], keepdim=true]
    %m.softmax.shifted: f32[4,8] = sub(%a_2, %m.softmax.max)
    %m.softmax.exp: f32[4,8] = exp(%m.softmax.shifted)
    %m.softmax.sum: f32[4,1] = sum(%m.softmax.exp) [axes=[1], keepdim=true]
    %m.softmax: f32[4,8] = div(%m.softmax.exp, %m.softmax.sum)
    %m.mul: f32[4,8] = mul(%m.div, %m.softmax)
    %m: f32[] = sum(%m.mul) [axes=[0, 1], keepdim=false]
    %grad.m.mul: f32[4,8] = mul(%tangent, %m.div)
    %grad.a.product: f32[4,8] = mul(%grad.m.mul, %m.softmax)
    %grad.a.sum: f32[4,1] = sum(%grad.a.product) [axes=[1], keepdim=true]
    %grad.a.difference: f32[4,8] = sub(%grad.m.mul, %grad.a.sum)
    %grad.a: f32[4,8] = mul(%grad.a.difference, %m.softmax)
    output result = %m
    output result = %grad.a
  }
  output result = %m
  output gradient "argument:a[1]" = %grad.a_1
}
// after
graph joint {
  %a_0: f32[4,8] = input argument "a[0]"
  %a_1: f32[4,8] = input argument "a[1]"
  %tangent: f32[] = input tangent
  %m: f32[], %grad.a_1: f32[4,8] = fused(%a_0, %a_1, %tangent) [form="softmax, softmax_backward", kind="rows"] {
    %a: f32[4,8] = input operand
    %a_2: f32[4,8] = input operand
    %tangent: f32[] = input operand
    %m.amax: f32[4,1] = amax(%a) [axes=[1], keepdim=true]
    %m.sub: f32[4,8] = sub(%a, %m.amax)
    %m.exp: f32[4,8] = exp(%m.sub)
    %m.sum: f32[4,1] = sum(%m.exp) [axes=[1], keepdim=true]
    %m.div: f32[4,8] = div(%m.exp, %m.sum)
    %m.softmax.max: f32[4,1] = amax(%a_2) [axes=[1], keepdim=true]
    %m.softmax.shifted: f32[4,8] = sub(%a_2, %m.softmax.max)
    %m.softmax.exp: f32[4,8] = exp(%m.softmax.shifted)
    %m.softmax.sum: f32[4,1] = sum(%m.softmax.exp) [axes=[1], keepdim=true]
    %m.softmax: f32[4,8] = div(%m.softmax.exp, %m.softmax.sum)
    %m.mul: f32[4,8] = mul(%m.div, %m.softmax)
    %m: f32[] = sum(%m.mul) [axes=[0, 1], keepdim=false]
    %grad.m.mul: f32[4,8] = mul(%tangent, %m.div)
    %grad.a.product: f32[4,8] = mul(%grad.m.mul, %m.softmax)
    %grad.a.sum: f32[4,1] = sum(%grad.a.product) [axes=[1], keepdim=true]
    %grad.a.difference: f32[4,8] = sub(%grad.m.mul, %grad.a.sum)
    %grad.a: f32[4,8] = mul(%grad.a.difference, %m.softmax)
    output result = %m
    output result = %grad.a
  }
  output result = %m
  output gradient "argument:a[1]" = %grad.a_1
}
