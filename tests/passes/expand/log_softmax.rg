// A 0-d tensor is one row.
// tolerance 1e-6
// before
graph g {
  %x: f32[2,3] = input argument "x"
  %s: f32[] = input argument "s"
  %t: f32[2,3] = input tangent "y"
  %y: f32[2,3] = log_softmax(%x) [axis=1]
  %one: f32[] = log_softmax(%s) [axis=0]
  %dx: f32[2,3] = log_softmax_backward(%t, %y) [axis=1]
  output result "y" = %y
  output result "one" = %one
  output gradient "x" = %dx
}
// after
graph g {
  %x: f32[2,3] = input argument "x"
  %s: f32[] = input argument "s"
  %t: f32[2,3] = input tangent "y"
  %y.max: f32[2,1] = amax(%x) [axes=[1], keepdim=true]
  %y.shifted: f32[2,3] = sub(%x, %y.max)
  %y.exp: f32[2,3] = exp(%y.shifted)
  %y.sum: f32[2,1] = sum(%y.exp) [axes=[1], keepdim=true]
  %y.log: f32[2,1] = log(%y.sum)
  %y: f32[2,3] = sub(%y.shifted, %y.log)
  %one.s.shaped: f32[1] = reshape(%s) [shape=[1]]
  %one.max: f32[1] = amax(%one.s.shaped) [axes=[0], keepdim=true]
  %one.shifted: f32[1] = sub(%one.s.shaped, %one.max)
  %one.exp: f32[1] = exp(%one.shifted)
  %one.sum: f32[1] = sum(%one.exp) [axes=[0], keepdim=true]
  %one.log: f32[1] = log(%one.sum)
  %one.difference: f32[1] = sub(%one.shifted, %one.log)
  %one: f32[] = reshape(%one.difference) [shape=[]]
  %dx.sum: f32[2,1] = sum(%t) [axes=[1], keepdim=true]
  %dx.exp: f32[2,3] = exp(%y)
  %dx.along: f32[2,3] = mul(%dx.exp, %dx.sum)
  %dx: f32[2,3] = sub(%t, %dx.along)
  output result "y" = %y
  output result "one" = %one
  output gradient "x" = %dx
}
