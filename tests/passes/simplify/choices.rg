A constant condition decides; equal branches need none; a negated condition swaps the branches.
// before
graph g {
  %x: f32[4] = input argument "x"
  %y: f32[3,4] = input argument "y"
  %b: b8[3,4] = input argument "b"
  %yes: b8[3,1] = full() [dtype=b8, shape=[3,1], value=true]
  %no: b8[] = full() [dtype=b8, shape=[], value=false]
  %first: f32[3,4] = where(%yes, %x, %y)
  %second: f32[3,4] = where(%no, %x, %y)
  %number: f32[3,4] = where(%yes, -1.0, %y)
  %equal: f32[3,4] = where(%b, %y, %y)
  %not: b8[3,4] = logical_not(%b)
  %swapped: f32[3,4] = where(%not, %x, 0.0)
  %numbers: f32[3,4] = where(%not, 1.0, 2.0) [dtype=f32]
  output result "first" = %first
  output result "second" = %second
  output result "number" = %number
  output result "equal" = %equal
  output result "swapped" = %swapped
  output result "numbers" = %numbers
}
// after
graph g {
  %x: f32[4] = input argument "x"
  %y: f32[3,4] = input argument "y"
  %b: b8[3,4] = input argument "b"
  %first: f32[3,4] = expand(%x) [shape=[3, 4]]
  %number: f32[3,4] = full() [dtype=f32, shape=[3, 4], value=-1.0]
  %swapped: f32[3,4] = where(%b, 0.0, %x)
  %numbers: f32[3,4] = where(%b, 2.0, 1.0) [dtype=f32]
  output result "first" = %first
  output result "second" = %y
  output result "number" = %number
  output result "equal" = %y
  output result "swapped" = %swapped
  output result "numbers" = %numbers
}
