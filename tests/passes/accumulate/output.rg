// A gradient of two uses of one weight: the last product gives it under its own name.
// tolerance 1e-5
// before
graph g {
  %a: f32[4,6] = input argument "a"
  %b: f32[6,8] = input argument "b"
  %c: f32[4,5] = input argument "c"
  %d: f32[5,8] = input argument "d"
  %p: f32[4,8] = matmul(%a, %b)
  %q: f32[4,8] = matmul(%c, %d)
  %s: f32[4,8] = add(%q, %p)
  output gradient "w" = %s
}
// after
graph g {
  %a: f32[4,6] = input argument "a"
  %b: f32[6,8] = input argument "b"
  %c: f32[4,5] = input argument "c"
  %d: f32[5,8] = input argument "d"
  %p: f32[4,8] = matmul(%a, %b)
  %s: f32[4,8] = addmm(%p, %c, %d)
  output gradient "w" = %s
}
