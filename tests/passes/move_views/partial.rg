// [2,1,4] has no form over [6,4], but everything has one over [2,3,4].
// before
graph g {
  %x: f32[6,4] = input argument "x"
  %m: f32[2,1,4] = input argument "m"
  %r: f32[6,1] = input argument "r"
  %a: f32[6,4] = add(%x, %r)
  %v: f32[2,3,4] = reshape(%a) [shape=[2, 3, 4]]
  %y: f32[2,3,4] = mul(%v, %m)
  output result "y" = %y
}
// after
graph g {
  %x: f32[6,4] = input argument "x"
  %m: f32[2,1,4] = input argument "m"
  %r: f32[6,1] = input argument "r"
  %x.shaped: f32[2,3,4] = reshape(%x) [shape=[2, 3, 4]]
  %r.shaped: f32[2,3,1] = reshape(%r) [shape=[2, 3, 1]]
  %a_2: f32[2,3,4] = add(%x.shaped, %r.shaped)
  %y: f32[2,3,4] = mul(%a_2, %m)
  output result "y" = %y
}
