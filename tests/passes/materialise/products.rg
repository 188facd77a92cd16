// A product reads transposes in place, heads that lie inside the sequence it does not.
// before
graph g {
  %q: f32[2,3,4,5] = input argument "q"
  %w: f32[5,3] = input parameter "w"
  %turned: f32[3,5] = permute(%w) [axes=[1, 0]]
  %p: f32[3,3] = matmul(%turned, %w)
  %heads: f32[2,4,3,5] = permute(%q) [axes=[0, 2, 1, 3]]
  %keys: f32[2,4,5,3] = permute(%heads) [axes=[0, 1, 3, 2]]
  %scores: f32[2,4,3,3] = matmul(%heads, %keys)
  output result "p" = %p
  output result "scores" = %scores
}
// after
graph g {
  %q: f32[2,3,4,5] = input argument "q"
  %w: f32[5,3] = input parameter "w"
  %turned: f32[3,5] = permute(%w) [axes=[1, 0]]
  %p: f32[3,3] = matmul(%turned, %w)
  %heads: f32[2,4,3,5] = permute(%q) [axes=[0, 2, 1, 3]]
  %keys: f32[2,4,5,3] = permute(%heads) [axes=[0, 1, 3, 2]]
  %heads.dense: f32[2,4,3,5] = copy(%heads)
  %keys.turned: f32[2,4,5,3] = permute(%heads.dense) [axes=[0, 1, 3, 2]]
  %scores: f32[2,4,3,3] = matmul(%heads.dense, %keys.turned)
  output result "p" = %p
  output result "scores" = %scores
}
