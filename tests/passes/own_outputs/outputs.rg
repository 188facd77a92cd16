// What is returned owns its memory: no input, no part, no second name. Updates read no input.
// before
graph g {
  %x: f32[2,3] = input argument "x"
  %state: f32[2,3] = input buffer "state"
  %y: f32[2,3] = neg(%x)
  %head: f32[1,3] = slice(%y) [axis=0, start=0, step=1, stop=1]
  %turned: f32[3,2] = permute(%y) [axes=[1, 0]]
  output result "same" = %x
  output result "y" = %y
  output result "again" = %y
  output result "head" = %head
  output result "turned" = %turned
  output update "buffer:state" = %x
}
// after
graph g {
  %x: f32[2,3] = input argument "x"
  %state: f32[2,3] = input buffer "state"
  %y: f32[2,3] = neg(%x)
  %head: f32[1,3] = slice(%y) [axis=0, start=0, step=1, stop=1]
  %turned: f32[3,2] = permute(%y) [axes=[1, 0]]
  %x.own: f32[2,3] = copy(%x)
  %y.own: f32[2,3] = copy(%y)
  %head.own: f32[1,3] = copy(%head)
  %turned.own: f32[3,2] = copy(%turned)
  %x.own_2: f32[2,3] = copy(%x)
  output result "same" = %x.own
  output result "y" = %y
  output result "again" = %y.own
  output result "head" = %head.own
  output result "turned" = %turned.own
  output update "buffer:state" = %x.own_2
}
