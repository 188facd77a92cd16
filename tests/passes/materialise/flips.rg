// PyTorch has no negative strides: what a library reads is copied, kernels read in place.
// before
graph g {
  %x: f32[4,4] = input argument "x"
  %w: f32[4,4] = input parameter "w"
  %f: f32[4,4] = flip(%x) [axis=0]
  %a: f32[4,4] = neg(%f)
  %p: f32[4,4] = matmul(%f, %w)
  %j: f32[8,4] = concatenate(%f, %w) [axis=0]
  output result "a" = %a
  output result "p" = %p
  output result "j" = %j
}
// after
graph g {
  %x: f32[4,4] = input argument "x"
  %w: f32[4,4] = input parameter "w"
  %f: f32[4,4] = flip(%x) [axis=0]
  %a: f32[4,4] = neg(%f)
  %f.dense: f32[4,4] = copy(%f)
  %p: f32[4,4] = matmul(%f.dense, %w)
  %j: f32[8,4] = concatenate(%f.dense, %w) [axis=0]
  output result "a" = %a
  output result "p" = %p
  output result "j" = %j
}
