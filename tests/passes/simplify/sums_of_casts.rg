A sum adds in the compute type whether or not its operand was cast to it before.
// before
graph g {
  %x: bf16[3,4] = input argument "x"
  %wide: f32[3,4] = cast(%x) [dtype=f32]
  %column: bf16[4] = sum(%wide) [axes=[0], dtype=bf16]
  %again: bf16[4] = sum(%x) [axes=[0], dtype=bf16]
  %row: f32[3,1] = sum(%wide) [axes=[1], keepdim=true]
  %top: f32[4] = amax(%wide) [axes=[0]]
  output result "column" = %column
  output result "again" = %again
  output result "row" = %row
  output result "top" = %top
}
// after
graph g {
  %x: bf16[3,4] = input argument "x"
  %wide: f32[3,4] = cast(%x) [dtype=f32]
  %column: bf16[4] = sum(%x) [axes=[0], dtype=bf16]
  %row: f32[3,1] = sum(%x) [axes=[1], dtype=f32, keepdim=true]
  %top: f32[4] = amax(%wide) [axes=[0]]
  output result "column" = %column
  output result "again" = %column
  output result "row" = %row
  output result "top" = %top
}
