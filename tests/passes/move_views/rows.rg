// Row values follow the shape in which their kernel makes and reads them.
// before
graph g {
  %x: f32[2,3,4] = input argument "x"
  %s: f32[2,3,1] = sum(%x) [axes=[2], keepdim=true]
  %v: f32[2,3] = reshape(%s) [shape=[2, 3]]
  %r: f32[2,3] = tanh(%v)
  %u: f32[2,3,1] = reshape(%r) [shape=[2, 3, 1]]
  %y: f32[2,3,4] = mul(%x, %u)
  output result "y" = %y
}
// after
graph g {
  %x: f32[2,3,4] = input argument "x"
  %s: f32[2,3,1] = sum(%x) [axes=[2], keepdim=true]
  %r_2: f32[2,3,1] = tanh(%s)
  %y: f32[2,3,4] = mul(%x, %r_2)
  output result "y" = %y
}
