// A rotary embedding and its derivative.
// before
graph joint {
  %a_0: f32[2,4,8] = input argument "a[0]"
  %a_1: f32[4,8] = input argument "a[1]"
  %a_2: f32[4,8] = input argument "a[2]"
  %tangent: f32[] = input tangent
  %a_0.shaped: f32[2,4,2,4] = reshape(%a_0) [shape=[2, 4, 2, 4]]
  %a_1.shaped: f32[4,2,4] = reshape(%a_1) [shape=[4, 2, 4]]
  %m.cat.flipped: f32[2,4,2,4] = flip(%a_0.shaped) [axis=2]
  %a_2.shaped: f32[4,2,4] = reshape(%a_2) [shape=[4, 2, 4]]
  %grad.m.cat.flipped_2: f32[4,2,4] = flip(%a_2.shaped) [axis=1]
  %m_2: f32[2,4,2,4], %sum: f32[], %grad.m.mul_2.2: f32[2,4,2,4] = fused(%a_0.shaped, %a_1.shaped, %m.cat.flipped, %a_2.shaped, %tangent) [kind="rows"] {
    %a.shaped: f32[2,4,2,4] = input operand
    %a.shaped_2: f32[4,2,4] = input operand
    %m.cat.flipped: f32[2,4,2,4] = input operand
    %a.shaped_3: f32[4,2,4] = input operand
    %tangent: f32[] = input operand
    %m.mul: f32[2,4,2,4] = mul(%a.shaped, %a.shaped_2)
    %m.cat.negated: f32[2,4,2,4] = neg(%m.cat.flipped)
    %m.cat.half: i32[2,1] = iota() [dtype=i32, length=2, shape=[2, 1], start=0, step=1]
    %m.cat.there: b8[2,1] = eq(%m.cat.half, 0)
    %m.cat.turned: f32[2,4,2,4] = where(%m.cat.there, %m.cat.negated, %m.cat.flipped)
    %m.mul_2: f32[2,4,2,4] = mul(%m.cat.turned, %a.shaped_3)
    %m: f32[2,4,2,4] = add(%m.mul, %m.mul_2)
    %pow: f32[2,4,2,4] = mul(%m, %m)
    %sum: f32[] = sum(%pow) [axes=[0, 1, 2, 3], keepdim=false]
    %grad.mul: f32[2,4,2,4] = mul(%m, 2.0)
    %grad.mul_2: f32[2,4,2,4] = mul(%tangent, %grad.mul)
    %grad.m.mul: f32[2,4,2,4] = mul(%grad.mul_2, %a.shaped_2)
    output result = %m
    output result = %sum
    output result = %grad.m.mul
  }
  %grad.m.cat.flipped: f32[2,4,2,4] = flip(%m_2) [axis=2]
  %grad.a_0.2: f32[2,4,2,4] = fused(%grad.m.cat.flipped, %tangent, %grad.m.cat.flipped_2, %grad.m.mul_2.2) [kind="rows"] {
    %m.cat.flipped: f32[2,4,2,4] = input operand
    %tangent: f32[] = input operand
    %m.cat.flipped_2: f32[4,2,4] = input operand
    %grad.m.mul: f32[2,4,2,4] = input operand
    %m.cat.mul: f32[2,4,2,4] = mul(%m.cat.flipped, 2.0)
    %m.cat.mul_2: f32[2,4,2,4] = mul(%tangent, %m.cat.mul)
    %m.cat.mul_3: f32[2,4,2,4] = mul(%m.cat.mul_2, %m.cat.flipped_2)
    %m.cat.negated: f32[2,4,2,4] = neg(%m.cat.mul_3)
    %m.cat.half: i32[2,1] = iota() [dtype=i32, length=2, shape=[2, 1], start=0, step=1]
    %m.cat.there: b8[2,1] = eq(%m.cat.half, 1)
    %m.cat.turned: f32[2,4,2,4] = where(%m.cat.there, %m.cat.negated, %m.cat.mul_3)
    %grad.a: f32[2,4,2,4] = add(%m.cat.turned, %grad.m.mul)
    output result = %grad.a
  }
  %grad.a_0: f32[2,4,8] = reshape(%grad.a_0.2) [shape=[2, 4, 8]]
  output result = %sum
  output gradient "argument:a[0]" = %grad.a_0
}
// after
graph joint {
  %a_0: f32[2,4,8] = input argument "a[0]"
  %a_1: f32[4,8] = input argument "a[1]"
  %a_2: f32[4,8] = input argument "a[2]"
  %tangent: f32[] = input tangent
  %a_0.shaped: f32[2,4,2,4] = reshape(%a_0) [shape=[2, 4, 2, 4]]
  %a_1.shaped: f32[4,2,4] = reshape(%a_1) [shape=[4, 2, 4]]
  %m.cat.flipped: f32[2,4,2,4] = flip(%a_0.shaped) [axis=2]
  %a_2.shaped: f32[4,2,4] = reshape(%a_2) [shape=[4, 2, 4]]
  %grad.m.cat.flipped_2: f32[4,2,4] = flip(%a_2.shaped) [axis=1]
  %m_2: f32[2,4,2,4], %sum: f32[], %grad.m.mul_2.2: f32[2,4,2,4] = fused(%a_0.shaped, %a_1.shaped, %m.cat.flipped, %a_2.shaped, %tangent) [form="rotary", kind="rows"] {
    %a.shaped: f32[2,4,2,4] = input operand
    %a.shaped_2: f32[4,2,4] = input operand
    %m.cat.flipped: f32[2,4,2,4] = input operand
    %a.shaped_3: f32[4,2,4] = input operand
    %tangent: f32[] = input operand
    %m.mul: f32[2,4,2,4] = mul(%a.shaped, %a.shaped_2)
    %m.cat.negated: f32[2,4,2,4] = neg(%m.cat.flipped)
    %m.cat.half: i32[2,1] = iota() [dtype=i32, length=2, shape=[2, 1], start=0, step=1]
    %m.cat.there: b8[2,1] = eq(%m.cat.half, 0)
    %m.cat.turned: f32[2,4,2,4] = where(%m.cat.there, %m.cat.negated, %m.cat.flipped)
    %m.mul_2: f32[2,4,2,4] = mul(%m.cat.turned, %a.shaped_3)
    %m: f32[2,4,2,4] = add(%m.mul, %m.mul_2)
    %pow: f32[2,4,2,4] = mul(%m, %m)
    %sum: f32[] = sum(%pow) [axes=[0, 1, 2, 3], keepdim=false]
    %grad.mul: f32[2,4,2,4] = mul(%m, 2.0)
    %grad.mul_2: f32[2,4,2,4] = mul(%tangent, %grad.mul)
    %grad.m.mul: f32[2,4,2,4] = mul(%grad.mul_2, %a.shaped_2)
    output result = %m
    output result = %sum
    output result = %grad.m.mul
  }
  %grad.m.cat.flipped: f32[2,4,2,4] = flip(%m_2) [axis=2]
  %grad.a_0.2: f32[2,4,2,4] = fused(%grad.m.cat.flipped, %tangent, %grad.m.cat.flipped_2, %grad.m.mul_2.2) [kind="rows"] {
    %m.cat.flipped: f32[2,4,2,4] = input operand
    %tangent: f32[] = input operand
    %m.cat.flipped_2: f32[4,2,4] = input operand
    %grad.m.mul: f32[2,4,2,4] = input operand
    %m.cat.mul: f32[2,4,2,4] = mul(%m.cat.flipped, 2.0)
    %m.cat.mul_2: f32[2,4,2,4] = mul(%tangent, %m.cat.mul)
    %m.cat.mul_3: f32[2,4,2,4] = mul(%m.cat.mul_2, %m.cat.flipped_2)
    %m.cat.negated: f32[2,4,2,4] = neg(%m.cat.mul_3)
    %m.cat.half: i32[2,1] = iota() [dtype=i32, length=2, shape=[2, 1], start=0, step=1]
    %m.cat.there: b8[2,1] = eq(%m.cat.half, 1)
    %m.cat.turned: f32[2,4,2,4] = where(%m.cat.there, %m.cat.negated, %m.cat.mul_3)
    %grad.a: f32[2,4,2,4] = add(%m.cat.turned, %grad.m.mul)
    output result = %grad.a
  }
  %grad.a_0: f32[2,4,8] = reshape(%grad.a_0.2) [shape=[2, 4, 8]]
  output result = %sum
  output gradient "argument:a[0]" = %grad.a_0
}
