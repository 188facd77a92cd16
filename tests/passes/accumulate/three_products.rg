// The gradient of what q, k and v read: each product adds to the one before, at its own place.
// tolerance 1e-5
// before
graph g {
  %dq: f32[6,4] = input argument "dq"
  %dk: f32[6,4] = input argument "dk"
  %dv: f32[6,4] = input argument "dv"
  %wq: f32[4,8] = input parameter "wq"
  %wk: f32[4,8] = input parameter "wk"
  %wv: f32[4,8] = input parameter "wv"
  %v.mm: f32[6,8] = matmul(%dv, %wv)
  %v: f32[2,3,8] = reshape(%v.mm) [shape=[2, 3, 8]]
  %k.mm: f32[6,8] = matmul(%dk, %wk)
  %k: f32[2,3,8] = reshape(%k.mm) [shape=[2, 3, 8]]
  %vk: f32[2,3,8] = add(%v, %k)
  %q.mm: f32[6,8] = matmul(%dq, %wq)
  %q: f32[2,3,8] = reshape(%q.mm) [shape=[2, 3, 8]]
  %dx: f32[2,3,8] = add(%vk, %q)
  %y: f32[2,3,8] = tanh(%dx)
  output result "y" = %y
}
// after
graph g {
  %dq: f32[6,4] = input argument "dq"
  %dk: f32[6,4] = input argument "dk"
  %dv: f32[6,4] = input argument "dv"
  %wq: f32[4,8] = input parameter "wq"
  %wk: f32[4,8] = input parameter "wk"
  %wv: f32[4,8] = input parameter "wv"
  %v.mm: f32[6,8] = matmul(%dv, %wv)
  %dx.part: f32[6,8] = addmm(%v.mm, %dk, %wk)
  %dx.part_2: f32[6,8] = addmm(%dx.part, %dq, %wq)
  %dx: f32[2,3,8] = reshape(%dx.part_2) [shape=[2, 3, 8]]
  %y: f32[2,3,8] = tanh(%dx)
  output result "y" = %y
}
