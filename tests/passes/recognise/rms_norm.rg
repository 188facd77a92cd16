// Hugging Face's form with its roundings, behind a residual; forward and backward.
// before
graph joint {
  %m.weight: bf16[8] = input parameter "m.weight"
  %a_0: bf16[4,8] = input argument "a[0]"
  %a_1: bf16[4,8] = input argument "a[1]"
  %tangent: bf16[] = input tangent
  %sum: bf16[], %grad.m.sum.total: bf16[8], %grad.a_1: bf16[4,8] = fused(%a_0, %a_1, %m.weight, %tangent) [kind="rows"] {
    %a: bf16[4,8] = input operand
    %a_2: bf16[4,8] = input operand
    %m.weight: bf16[8] = input operand
    %tangent: bf16[] = input operand
    %m.add: bf16[4,8] = add(%a, %a_2)
    %m.to_copy: f32[4,8] = cast(%m.add) [dtype=f32]
    %m.pow: f32[4,8] = mul(%m.to_copy, %m.to_copy)
    %m.mean: f32[4,1] = mean(%m.pow) [axes=[1], keepdim=true]
    %m.add_2: f32[4,1] = add(%m.mean, 1e-06)
    %m.rsqrt: f32[4,1] = rsqrt(%m.add_2)
    %m.mul: f32[4,8] = mul(%m.to_copy, %m.rsqrt)
    %m.to_copy_2: bf16[4,8] = cast(%m.mul) [dtype=bf16]
    %m: bf16[4,8] = mul(%m.weight, %m.to_copy_2)
    %sum: bf16[] = sum(%m) [axes=[0, 1], keepdim=false]
    %grad.m.mul: bf16[4,8] = mul(%tangent, %m.to_copy_2)
    %m.sum.total: bf16[8] = sum(%grad.m.mul) [axes=[0], dtype=bf16, keepdim=false]
    %m.mul.narrow: bf16[8] = mul(%tangent, %m.weight)
    %m.to_copy.narrow: f32[8] = cast(%m.mul.narrow) [dtype=f32]
    %grad.m.mul_2: f32[4,8] = mul(%m.to_copy.narrow, %m.rsqrt)
    %grad.m.mul_3: f32[4,8] = mul(%m.to_copy.narrow, %m.to_copy)
    %grad.m.sum: f32[4,1] = sum(%grad.m.mul_3) [axes=[1], keepdim=true]
    %m.pow.square: f32[4,1] = mul(%m.rsqrt, %m.rsqrt)
    %grad.m.pow: f32[4,1] = mul(%m.pow.square, %m.rsqrt)
    %grad.m.mul_4: f32[4,1] = mul(%grad.m.sum, -0.5)
    %grad.m.mul_5: f32[4,1] = mul(%grad.m.mul_4, %grad.m.pow)
    %grad.m.div: f32[4,1] = mul(%grad.m.mul_5, 0.125)
    %grad.m.mul_6: f32[4,8] = mul(%m.to_copy, 2.0)
    %grad.m.mul_7: f32[4,8] = mul(%grad.m.div, %grad.m.mul_6)
    %grad.add: f32[4,8] = add(%grad.m.mul_2, %grad.m.mul_7)
    %grad.a: bf16[4,8] = cast(%grad.add) [dtype=bf16]
    output result = %sum
    output result = %m.sum.total
    output result = %grad.a
  }
  output result = %sum
  output gradient "m.weight" = %grad.m.sum.total
  output gradient "argument:a[0]" = %grad.a_1
  output gradient "argument:a[1]" = %grad.a_1
}
// after
graph joint {
  %m.weight: bf16[8] = input parameter "m.weight"
  %a_0: bf16[4,8] = input argument "a[0]"
  %a_1: bf16[4,8] = input argument "a[1]"
  %tangent: bf16[] = input tangent
  %sum: bf16[], %grad.m.sum.total: bf16[8], %grad.a_1: bf16[4,8] = fused(%a_0, %a_1, %m.weight, %tangent) [form="residual_rms_norm, rms_norm_backward", kind="rows"] {
    %a: bf16[4,8] = input operand
    %a_2: bf16[4,8] = input operand
    %m.weight: bf16[8] = input operand
    %tangent: bf16[] = input operand
    %m.add: bf16[4,8] = add(%a, %a_2)
    %m.to_copy: f32[4,8] = cast(%m.add) [dtype=f32]
    %m.pow: f32[4,8] = mul(%m.to_copy, %m.to_copy)
    %m.mean: f32[4,1] = mean(%m.pow) [axes=[1], keepdim=true]
    %m.add_2: f32[4,1] = add(%m.mean, 1e-06)
    %m.rsqrt: f32[4,1] = rsqrt(%m.add_2)
    %m.mul: f32[4,8] = mul(%m.to_copy, %m.rsqrt)
    %m.to_copy_2: bf16[4,8] = cast(%m.mul) [dtype=bf16]
    %m: bf16[4,8] = mul(%m.weight, %m.to_copy_2)
    %sum: bf16[] = sum(%m) [axes=[0, 1], keepdim=false]
    %grad.m.mul: bf16[4,8] = mul(%tangent, %m.to_copy_2)
    %m.sum.total: bf16[8] = sum(%grad.m.mul) [axes=[0], dtype=bf16, keepdim=false]
    %m.mul.narrow: bf16[8] = mul(%tangent, %m.weight)
    %m.to_copy.narrow: f32[8] = cast(%m.mul.narrow) [dtype=f32]
    %grad.m.mul_2: f32[4,8] = mul(%m.to_copy.narrow, %m.rsqrt)
    %grad.m.mul_3: f32[4,8] = mul(%m.to_copy.narrow, %m.to_copy)
    %grad.m.sum: f32[4,1] = sum(%grad.m.mul_3) [axes=[1], keepdim=true]
    %m.pow.square: f32[4,1] = mul(%m.rsqrt, %m.rsqrt)
    %grad.m.pow: f32[4,1] = mul(%m.pow.square, %m.rsqrt)
    %grad.m.mul_4: f32[4,1] = mul(%grad.m.sum, -0.5)
    %grad.m.mul_5: f32[4,1] = mul(%grad.m.mul_4, %grad.m.pow)
    %grad.m.div: f32[4,1] = mul(%grad.m.mul_5, 0.125)
    %grad.m.mul_6: f32[4,8] = mul(%m.to_copy, 2.0)
    %grad.m.mul_7: f32[4,8] = mul(%grad.m.div, %grad.m.mul_6)
    %grad.add: f32[4,8] = add(%grad.m.mul_2, %grad.m.mul_7)
    %grad.a: bf16[4,8] = cast(%grad.add) [dtype=bf16]
    output result = %sum
    output result = %m.sum.total
    output result = %grad.a
  }
  output result = %sum
  output gradient "m.weight" = %grad.m.sum.total
  output gradient "argument:a[0]" = %grad.a_1
  output gradient "argument:a[1]" = %grad.a_1
}
