// %a and %y may not be one kernel: the product lies between them.
// before
graph g {
  %x: f32[4,4] = input argument "x"
  %a: f32[4,4] = tanh(%x)
  %p: f32[4,4] = matmul(%a, %a)
  %y: f32[4,4] = add(%a, %p)
  output result "y" = %y
}
// after
graph g {
  %x: f32[4,4] = input argument "x"
  %a: f32[4,4] = fused(%x) [kind="rows"] {
    %x: f32[4,4] = input operand
    %a: f32[4,4] = tanh(%x)
    output result = %a
  }
  %p: f32[4,4] = matmul(%a, %a)
  %y: f32[4,4] = fused(%a, %p) [kind="rows"] {
    %a: f32[4,4] = input operand
    %p: f32[4,4] = input operand
    %y: f32[4,4] = add(%a, %p)
    output result = %y
  }
  output result "y" = %y
}
