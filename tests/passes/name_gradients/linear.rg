// An argument's gradient, one inside a list, a name that another value has, and a gradient that is a result as well.
// before
graph g {
  %tangent: f32[4,3] = input tangent "y"
  %x: f32[4,2] = input argument "x"
  %w: f32[3,2] = input parameter "w"
  %t: f32[3,4] = permute(%tangent) [axes=[1, 0]]
  %grad.mm: f32[3,2] = matmul(%t, %x)
  %grad.mm_2: f32[4,2] = matmul(%tangent, %w)
  %grad.v: f32[4,3] = mul(%tangent, 2.0)
  %grad.mul: f32[4,3] = mul(%grad.v, 3.0)
  %grad.add: f32[4,3] = add(%tangent, 1.0)
  %grad.sub: f32[4,3] = sub(%tangent, 1.0)
  output result "seen" = %grad.add
  output gradient "w" = %grad.mm
  output gradient "argument:x" = %grad.mm_2
  output gradient "v" = %grad.mul
  output gradient "u" = %grad.add
  output gradient "t" = %tangent
  output gradient "argument:inputs[0]" = %grad.sub
}
// after
graph g {
  %tangent: f32[4,3] = input tangent "y"
  %x: f32[4,2] = input argument "x"
  %w: f32[3,2] = input parameter "w"
  %t: f32[3,4] = permute(%tangent) [axes=[1, 0]]
  %grad.w: f32[3,2] = matmul(%t, %x)
  %grad.x: f32[4,2] = matmul(%tangent, %w)
  %grad.v: f32[4,3] = mul(%tangent, 2.0)
  %grad.mul: f32[4,3] = mul(%grad.v, 3.0)
  %grad.add: f32[4,3] = add(%tangent, 1.0)
  %grad.inputs_0: f32[4,3] = sub(%tangent, 1.0)
  output result "seen" = %grad.add
  output gradient "w" = %grad.w
  output gradient "argument:x" = %grad.x
  output gradient "v" = %grad.mul
  output gradient "u" = %grad.add
  output gradient "t" = %tangent
  output gradient "argument:inputs[0]" = %grad.inputs_0
}
