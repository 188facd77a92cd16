Small powers become products and roots; of 16 bits the cube would round in between, so it stays.
// before
graph g {
  %x: f32[10] = input argument "x"
  %h: bf16[10] = input argument "h"
  %n: i64[3] = input argument "n"
  %one: f32[10] = pow(%x, 1)
  %two: f32[10] = pow(%one, 2)
  %three: f32[10] = pow(%x, 3.0)
  %root: f32[10] = pow(%x, 0.5)
  %inverse: f32[10] = pow(%x, -1)
  %inverse_root: f32[10] = pow(%x, -0.5)
  %other: f32[10] = pow(%x, 2.5)
  %square: bf16[10] = pow(%h, 2.0)
  %cube: bf16[10] = pow(%h, 3.0)
  %whole: i64[3] = pow(%n, 2)
  output result "two" = %two
  output result "three" = %three
  output result "root" = %root
  output result "inverse" = %inverse
  output result "inverse_root" = %inverse_root
  output result "other" = %other
  output result "square" = %square
  output result "cube" = %cube
  output result "whole" = %whole
}
// after
graph g {
  %x: f32[10] = input argument "x"
  %h: bf16[10] = input argument "h"
  %n: i64[3] = input argument "n"
  %two: f32[10] = mul(%x, %x)
  %three: f32[10] = mul(%two, %x)
  %root: f32[10] = sqrt(%x)
  %inverse: f32[10] = reciprocal(%x)
  %inverse_root: f32[10] = rsqrt(%x)
  %other: f32[10] = pow(%x, 2.5)
  %square: bf16[10] = mul(%h, %h)
  %cube: bf16[10] = pow(%h, 3.0)
  %whole: i64[3] = mul(%n, %n)
  output result "two" = %two
  output result "three" = %three
  output result "root" = %root
  output result "inverse" = %inverse
  output result "inverse_root" = %inverse_root
  output result "other" = %other
  output result "square" = %square
  output result "cube" = %cube
  output result "whole" = %whole
}
