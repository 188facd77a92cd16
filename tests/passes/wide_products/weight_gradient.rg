// tolerance 1e-5
// The weight gradient of a chunk: both factors were widened, one is turned behind the cast.
// before
graph g {
  %x: bf16[6,4] = input argument "x"
  %g: bf16[6,8] = input argument "g"
  %acc: f32[8,4] = input argument "acc"
  %g.f32: f32[6,8] = cast(%g) [dtype=f32]
  %x.f32: f32[6,4] = cast(%x) [dtype=f32]
  %g.t: f32[8,6] = permute(%g.f32) [axes=[1, 0]]
  %p: f32[8,4] = matmul(%g.t, %x.f32)
  %s: f32[8,4] = addmm(%acc, %g.t, %x.f32)
  output result "p" = %p
  output result "s" = %s
}
// after
graph g {
  %x: bf16[6,4] = input argument "x"
  %g: bf16[6,8] = input argument "g"
  %acc: f32[8,4] = input argument "acc"
  %g.t.narrow: bf16[8,6] = permute(%g) [axes=[1, 0]]
  %p: f32[8,4] = matmul(%g.t.narrow, %x) [dtype=f32]
  %g.t.narrow_2: bf16[8,6] = permute(%g) [axes=[1, 0]]
  %s: f32[8,4] = addmm(%acc, %g.t.narrow_2, %x) [dtype=f32]
  output result "p" = %p
  output result "s" = %s
}
