// One product and a value that dies: added by the product, since only a product reads the sum.
// tolerance 1e-5
// before
graph g {
  %x: f32[4,8] = input argument "x"
  %a: f32[4,6] = input argument "a"
  %b: f32[6,8] = input parameter "b"
  %c: f32[8,3] = input parameter "c"
  %h: f32[4,8] = tanh(%x)
  %p: f32[4,8] = matmul(%a, %b)
  %s: f32[4,8] = add(%p, %h)
  %y: f32[4,3] = matmul(%s, %c)
  output result "y" = %y
}
// after
graph g {
  %x: f32[4,8] = input argument "x"
  %a: f32[4,6] = input argument "a"
  %b: f32[6,8] = input parameter "b"
  %c: f32[8,3] = input parameter "c"
  %h: f32[4,8] = tanh(%x)
  %s: f32[4,8] = addmm(%h, %a, %b)
  %y: f32[4,3] = matmul(%s, %c)
  output result "y" = %y
}
