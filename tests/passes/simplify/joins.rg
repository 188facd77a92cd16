Parts of a concatenation are its operands; empty parts and empty padding go.
// before
graph g {
  %x: f32[2,3] = input argument "x"
  %y: f32[2,1] = input argument "y"
  %none: f32[2,0] = slice(%x) [axis=1, start=0, stop=0, step=1]
  %all: f32[2,4] = concatenate(%x, %none, %y) [axis=1]
  %one: f32[2,3] = concatenate(%none, %x) [axis=1]
  %left: f32[2,3] = slice(%all) [axis=1, start=0, stop=3, step=1]
  %right: f32[2,1] = slice(%all) [axis=1, start=3, stop=4, step=1]
  %across: f32[2,2] = slice(%all) [axis=1, start=2, stop=4, step=1]
  %pad: f32[2,3] = pad(%x) [low=[0,0], high=[0,0], value=1.0]
  output result "one" = %one
  output result "left" = %left
  output result "right" = %right
  output result "across" = %across
  output result "pad" = %pad
}
// after
graph g {
  %x: f32[2,3] = input argument "x"
  %y: f32[2,1] = input argument "y"
  %all: f32[2,4] = concatenate(%x, %y) [axis=1]
  %across: f32[2,2] = slice(%all) [axis=1, start=2, step=1, stop=4]
  output result "one" = %x
  output result "left" = %x
  output result "right" = %y
  output result "across" = %across
  output result "pad" = %x
}
