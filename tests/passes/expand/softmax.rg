// Compute type f32 inside, one rounding; the axis moves to the end and back.
// tolerance 1e-6
// before
graph g {
  %x: bf16[2,3,4] = input argument "x"
  %t: f32[2,3,4] = input tangent "y"
  %y: bf16[2,3,4] = softmax(%x) [axis=1]  # model.py:7 @attention
  %z: f32[2,3,4] = softmax(%x) [axis=2, dtype=f32]
  %dx: bf16[2,3,4] = softmax_backward(%t, %z) [axis=2, dtype=bf16]
  output result "y" = %y
  output result "z" = %z
  output gradient "x" = %dx
}
// after
graph g {
  %x: bf16[2,3,4] = input argument "x"
  %t: f32[2,3,4] = input tangent "y"
  %y.turned: bf16[2,4,3] = permute(%x) [axes=[0, 2, 1]]  # model.py:7 @attention
  %y.turned.f32: f32[2,4,3] = cast(%y.turned) [dtype=f32]  # model.py:7 @attention
  %y.max: f32[2,4,1] = amax(%y.turned.f32) [axes=[2], keepdim=true]  # model.py:7 @attention
  %y.shifted: f32[2,4,3] = sub(%y.turned.f32, %y.max)  # model.py:7 @attention
  %y.exp: f32[2,4,3] = exp(%y.shifted)  # model.py:7 @attention
  %y.sum: f32[2,4,1] = sum(%y.exp) [axes=[2], keepdim=true]  # model.py:7 @attention
  %y.quotient: f32[2,4,3] = div(%y.exp, %y.sum)  # model.py:7 @attention
  %y.quotient.bf16: bf16[2,4,3] = cast(%y.quotient) [dtype=bf16]  # model.py:7 @attention
  %y: bf16[2,3,4] = permute(%y.quotient.bf16) [axes=[0, 2, 1]]  # model.py:7 @attention
  %z.x.f32: f32[2,3,4] = cast(%x) [dtype=f32]
  %z.max: f32[2,3,1] = amax(%z.x.f32) [axes=[2], keepdim=true]
  %z.shifted: f32[2,3,4] = sub(%z.x.f32, %z.max)
  %z.exp: f32[2,3,4] = exp(%z.shifted)
  %z.sum: f32[2,3,1] = sum(%z.exp) [axes=[2], keepdim=true]
  %z: f32[2,3,4] = div(%z.exp, %z.sum)
  %dx.product: f32[2,3,4] = mul(%t, %z)
  %dx.sum: f32[2,3,1] = sum(%dx.product) [axes=[2], keepdim=true]
  %dx.difference: f32[2,3,4] = sub(%t, %dx.sum)
  %dx.dx: f32[2,3,4] = mul(%dx.difference, %z)
  %dx: bf16[2,3,4] = cast(%dx.dx) [dtype=bf16]
  output result "y" = %y
  output result "z" = %z
  output gradient "x" = %dx
}
