// A partial broadcast joins its only reader, not where its value is wanted outside.
// before
graph g {
  %m: f32[1,4,6] = input argument "m"
  %n: f32[1,4,6] = input argument "n"
  %x: f32[3,4,6] = input argument "x"
  %inner: f32[1,4,6] = neg(%m)
  %outer: f32[1,4,6] = neg(%n)
  %a: f32[3,4,6] = add(%x, %inner)
  %y: f32[3,4,6] = add(%a, %outer)
  output result "y" = %y
  output result "outer" = %outer
}
// after
graph g {
  %m: f32[1,4,6] = input argument "m"
  %n: f32[1,4,6] = input argument "n"
  %x: f32[3,4,6] = input argument "x"
  %outer: f32[1,4,6] = fused(%n) [kind="rows"] {
    %n: f32[1,4,6] = input operand
    %outer: f32[1,4,6] = neg(%n)
    output result = %outer
  }
  %y: f32[3,4,6] = fused(%m, %x, %outer) [kind="rows"] {
    %m: f32[1,4,6] = input operand
    %x: f32[3,4,6] = input operand
    %outer: f32[1,4,6] = input operand
    %inner: f32[1,4,6] = neg(%m)
    %a: f32[3,4,6] = add(%x, %inner)
    %y: f32[3,4,6] = add(%a, %outer)
    output result = %y
  }
  output result "y" = %y
  output result "outer" = %outer
}
