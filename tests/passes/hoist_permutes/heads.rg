// The product reads heads inside the sequence: the sum is made in that order, rows and columns of it too.
// before
graph g {
  %a: f32[2,4,3,2,5] = input argument "a"
  %cos: f32[3,10] = input constant "cos"
  %w: f32[40,6] = input parameter "w"
  %c: f32[3,2,5] = reshape(%cos) [shape=[3, 2, 5]]
  %m: f32[2,4,3,2,5] = mul(%a, %c)
  %e: f32[2,4,3,2,5] = exp(%m)
  %s: f32[2,4,3,2,5] = add(%e, %a)
  %v: f32[2,4,3,10] = reshape(%s) [shape=[2, 4, 3, 10]]
  %t: f32[2,3,4,10] = permute(%v) [axes=[0, 2, 1, 3]]
  %f: f32[6,40] = reshape(%t) [shape=[6, 40]]
  %p: f32[6,6] = matmul(%f, %w)
  output result "p" = %p
}
// after
graph g {
  %a: f32[2,4,3,2,5] = input argument "a"
  %cos: f32[3,10] = input constant "cos"
  %w: f32[40,6] = input parameter "w"
  %c: f32[3,2,5] = reshape(%cos) [shape=[3, 2, 5]]
  %a.turned: f32[2,3,4,2,5] = permute(%a) [axes=[0, 2, 1, 3, 4]]
  %c.shaped: f32[3,1,2,5] = reshape(%c) [shape=[3, 1, 2, 5]]
  %m.turned: f32[2,3,4,2,5] = mul(%a.turned, %c.shaped)
  %e.turned: f32[2,3,4,2,5] = exp(%m.turned)
  %a.turned_2: f32[2,3,4,2,5] = permute(%a) [axes=[0, 2, 1, 3, 4]]
  %s.turned: f32[2,3,4,2,5] = add(%e.turned, %a.turned_2)
  %t: f32[2,3,4,10] = reshape(%s.turned) [shape=[2, 3, 4, 10]]
  %f: f32[6,40] = reshape(%t) [shape=[6, 40]]
  %p: f32[6,6] = matmul(%f, %w)
  output result "p" = %p
}
