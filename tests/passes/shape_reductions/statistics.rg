// Batch statistics: a row sum, then a column sum, in f32 until the last step.
// tolerance 1e-2
// before
graph g {
  %x: bf16[2,3,4,5] = input argument "x"
  %mean: bf16[3] = mean(%x) [axes=[0, 2, 3], keepdim=false]  # model.py:9 @norm
  output result "mean" = %mean
}
// after
graph g {
  %x: bf16[2,3,4,5] = input argument "x"
  %mean.shaped: bf16[2,3,20] = reshape(%x) [shape=[2, 3, 20]]  # model.py:9 @norm
  %mean.row: f32[2,3,1] = sum(%mean.shaped) [axes=[2], dtype=f32, keepdim=true]  # model.py:9 @norm
  %mean.shaped_2: f32[2,3] = reshape(%mean.row) [shape=[2, 3]]  # model.py:9 @norm
  %mean.total: f32[3] = sum(%mean.shaped_2) [axes=[0], dtype=f32, keepdim=false]  # model.py:9 @norm
  %mean.quotient: f32[3] = div(%mean.total, 40)  # model.py:9 @norm
  %mean.rounded: bf16[3] = cast(%mean.quotient) [dtype=bf16]  # model.py:9 @norm
  %mean: bf16[3] = reshape(%mean.rounded) [shape=[3]]  # model.py:9 @norm
  output result "mean" = %mean
}
