// A copy where no strides exist, none where they do.
// before
graph g {
  %x: f32[2,3,4] = input argument "x"
  %t: f32[3,2,4] = permute(%x) [axes=[1, 0, 2]]
  %flat: f32[24] = reshape(%t) [shape=[24]]
  %again: f32[6,4] = reshape(%t) [shape=[6, 4]]
  %half: f32[3,2,2,2] = reshape(%t) [shape=[3, 2, 2, 2]]
  %a: f32[24] = neg(%flat)
  %b: f32[6,4] = neg(%again)
  %c: f32[3,2,2,2] = neg(%half)
  output result "a" = %a
  output result "b" = %b
  output result "c" = %c
}
// after
graph g {
  %x: f32[2,3,4] = input argument "x"
  %t: f32[3,2,4] = permute(%x) [axes=[1, 0, 2]]
  %t.dense: f32[3,2,4] = copy(%t)
  %flat: f32[24] = reshape(%t.dense) [shape=[24]]
  %again: f32[6,4] = reshape(%t.dense) [shape=[6, 4]]
  %half: f32[3,2,2,2] = reshape(%t) [shape=[3, 2, 2, 2]]
  %a: f32[24] = neg(%flat)
  %b: f32[6,4] = neg(%again)
  %c: f32[3,2,2,2] = neg(%half)
  output result "a" = %a
  output result "b" = %b
  output result "c" = %c
}
