// Terms that are no products are added last, where a kernel takes them along.
// tolerance 1e-5
// before
graph g {
  %r: f32[4,8] = input argument "r"
  %a: f32[4,6] = input argument "a"
  %b: f32[6,8] = input parameter "b"
  %c: f32[4,6] = input argument "c"
  %d: f32[6,8] = input parameter "d"
  %bias: f32[8] = input parameter "bias"
  %s: f32[4,8] = neg(%r)
  %p: f32[4,8] = addmm(%bias, %a, %b)
  %q: f32[4,8] = matmul(%c, %d)
  %t: f32[4,8] = add(%r, %p)
  %u: f32[4,8] = add(%t, %s)
  %v: f32[4,8] = add(%u, %q)
  %y: f32[4,8] = mul(%v, %s)
  output result "y" = %y
}
// after
graph g {
  %r: f32[4,8] = input argument "r"
  %a: f32[4,6] = input argument "a"
  %b: f32[6,8] = input parameter "b"
  %c: f32[4,6] = input argument "c"
  %d: f32[6,8] = input parameter "d"
  %bias: f32[8] = input parameter "bias"
  %s: f32[4,8] = neg(%r)
  %p: f32[4,8] = addmm(%bias, %a, %b)
  %v.part: f32[4,8] = addmm(%p, %c, %d)
  %v.others: f32[4,8] = add(%r, %s)
  %v: f32[4,8] = add(%v.others, %v.part)
  %y: f32[4,8] = mul(%v, %s)
  output result "y" = %y
}
