// A view backwards has no strides in PyTorch.
// before
graph g {
  %x: f32[4,4] = input argument "x"
  %y: f32[4,4] = neg(%x)
  %f: f32[4,4] = flip(%y) [axis=0]
  %t: f32[4,4] = permute(%f) [axes=[1, 0]]
  output result "t" = %t
}
// after
graph g {
  %x: f32[4,4] = input argument "x"
  %y: f32[4,4] = neg(%x)
  %f: f32[4,4] = flip(%y) [axis=0]
  %t: f32[4,4] = permute(%f) [axes=[1, 0]]
  %t.own: f32[4,4] = copy(%t)
  output result "t" = %t.own
}
