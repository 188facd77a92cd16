Division by a power of two multiplies by its reciprocal, which has the same bits; by three it stays.
// before
graph g {
  %x: f32[10] = input argument "x"
  %h: f16[10] = input argument "h"
  %n: i32[3] = input argument "n"
  %a: f32[10] = div(%x, 8)
  %b: f32[10] = div(%x, 3.0)
  %c: f16[10] = div(%h, -0.25)
  %d: f32[10] = mul(%x, -1.0)
  %e: i32[3] = mul(%n, -1)
  %f: f32[10] = div(%x, 0.0)
  %g: f32[10] = div(8.0, %x)
  output result "a" = %a
  output result "b" = %b
  output result "c" = %c
  output result "d" = %d
  output result "e" = %e
  output result "f" = %f
  output result "g" = %g
}
// after
graph g {
  %x: f32[10] = input argument "x"
  %h: f16[10] = input argument "h"
  %n: i32[3] = input argument "n"
  %a: f32[10] = mul(%x, 0.125)
  %b: f32[10] = div(%x, 3.0)
  %c: f16[10] = mul(%h, -4.0)
  %d: f32[10] = neg(%x)
  %e: i32[3] = neg(%n)
  %f: f32[10] = div(%x, 0.0)
  %g: f32[10] = div(8.0, %x)
  output result "a" = %a
  output result "b" = %b
  output result "c" = %c
  output result "d" = %d
  output result "e" = %e
  output result "f" = %f
  output result "g" = %g
}
