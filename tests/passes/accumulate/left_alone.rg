// Left alone: a sum that a kernel takes along, a product that others read, one of a batch, x + x.
// before
graph g {
  %x: f32[4,8] = input argument "x"
  %a: f32[4,6] = input argument "a"
  %b: f32[6,8] = input parameter "b"
  %c: f32[2,4,6] = input argument "c"
  %d: f32[2,6,8] = input argument "d"
  %h: f32[4,8] = tanh(%x)
  %p: f32[4,8] = matmul(%a, %b)
  %s: f32[4,8] = add(%p, %h)
  %y: f32[4,8] = exp(%s)
  %q: f32[4,8] = matmul(%a, %b)
  %u: f32[4,8] = matmul(%a, %b)
  %z: f32[4,8] = add(%q, %u)
  %e: f32[2,4,8] = matmul(%c, %d)
  %f: f32[2,4,8] = matmul(%c, %d)
  %w: f32[2,4,8] = add(%e, %f)
  %m: f32[4,8] = matmul(%a, %b)
  %n: f32[4,8] = add(%m, %m)
  output result "y" = %y
  output result "z" = %z
  output result "q" = %q
  output result "w" = %w
  output result "n" = %n
}
// after
graph g {
  %x: f32[4,8] = input argument "x"
  %a: f32[4,6] = input argument "a"
  %b: f32[6,8] = input parameter "b"
  %c: f32[2,4,6] = input argument "c"
  %d: f32[2,6,8] = input argument "d"
  %h: f32[4,8] = tanh(%x)
  %p: f32[4,8] = matmul(%a, %b)
  %s: f32[4,8] = add(%p, %h)
  %y: f32[4,8] = exp(%s)
  %q: f32[4,8] = matmul(%a, %b)
  %u: f32[4,8] = matmul(%a, %b)
  %z: f32[4,8] = add(%q, %u)
  %e: f32[2,4,8] = matmul(%c, %d)
  %f: f32[2,4,8] = matmul(%c, %d)
  %w: f32[2,4,8] = add(%e, %f)
  %m: f32[4,8] = matmul(%a, %b)
  %n: f32[4,8] = add(%m, %m)
  output result "y" = %y
  output result "z" = %z
  output result "q" = %q
  output result "w" = %w
  output result "n" = %n
}
