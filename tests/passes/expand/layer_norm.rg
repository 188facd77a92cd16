// Two axes become one; the variance is the mean of squared deviations.
// tolerance 1e-5
// before
graph g {
  %x: f32[2,3,4] = input argument "x"
  %weight: f32[3,4] = input parameter "weight"
  %bias: f32[3,4] = input parameter "bias"
  %t: f32[2,3,4] = input tangent "y"
  %y: f32[2,3,4], %mean: f32[2,1,1], %rstd: f32[2,1,1] = layer_norm(%x, %weight, %bias) [axes=2, epsilon=1e-05]  # model.py:3 @norm
  %dx: f32[2,3,4], %dw: f32[3,4], %db: f32[3,4] = layer_norm_backward(%t, %x, %mean, %rstd, %weight) [axes=2, needs=[true, true, true]]
  output result "y" = %y
  output gradient "argument:x" = %dx
  output gradient "weight" = %dw
  output gradient "bias" = %db
}
// after
graph g {
  %x: f32[2,3,4] = input argument "x"
  %weight: f32[3,4] = input parameter "weight"
  %bias: f32[3,4] = input parameter "bias"
  %t: f32[2,3,4] = input tangent "y"
  %y.x.shaped: f32[2,12] = reshape(%x) [shape=[2, 12]]  # model.py:3 @norm
  %y.weight.shaped: f32[12] = reshape(%weight) [shape=[12]]  # model.py:3 @norm
  %y.bias.shaped: f32[12] = reshape(%bias) [shape=[12]]  # model.py:3 @norm
  %y.first_mean: f32[2,1] = mean(%y.x.shaped) [axes=[1], keepdim=true]  # model.py:3 @norm
  %y.near: f32[2,12] = sub(%y.x.shaped, %y.first_mean)  # model.py:3 @norm
  %y.rest: f32[2,1] = mean(%y.near) [axes=[1], keepdim=true]  # model.py:3 @norm
  %y.row.mean: f32[2,1] = add(%y.first_mean, %y.rest)  # model.py:3 @norm
  %mean: f32[2,1,1] = reshape(%y.row.mean) [shape=[2, 1, 1]]  # model.py:3 @norm
  %y.square: f32[2,12] = mul(%y.near, %y.near)  # model.py:3 @norm
  %y.variance: f32[2,1] = mean(%y.square) [axes=[1], keepdim=true]  # model.py:3 @norm
  %y.shifted: f32[2,1] = add(%y.variance, 1e-05)  # model.py:3 @norm
  %y.row.rstd: f32[2,1] = rsqrt(%y.shifted)  # model.py:3 @norm
  %rstd: f32[2,1,1] = reshape(%y.row.rstd) [shape=[2, 1, 1]]  # model.py:3 @norm
  %y.centred: f32[2,12] = sub(%y.x.shaped, %y.row.mean)  # model.py:3 @norm
  %y.normal: f32[2,12] = mul(%y.centred, %y.row.rstd)  # model.py:3 @norm
  %y.affine: f32[2,12] = multiply_add(%y.normal, %y.weight.shaped, %y.bias.shaped)  # model.py:3 @norm
  %y: f32[2,3,4] = reshape(%y.affine) [shape=[2, 3, 4]]  # model.py:3 @norm
  %dx.t.shaped: f32[2,12] = reshape(%t) [shape=[2, 12]]
  %dx.x.shaped: f32[2,12] = reshape(%x) [shape=[2, 12]]
  %dx.mean.shaped: f32[2,1] = reshape(%mean) [shape=[2, 1]]
  %dx.rstd.shaped: f32[2,1] = reshape(%rstd) [shape=[2, 1]]
  %dx.weight.shaped: f32[12] = reshape(%weight) [shape=[12]]
  %dx.centred: f32[2,12] = sub(%dx.x.shaped, %dx.mean.shaped)
  %dx.normal: f32[2,12] = mul(%dx.centred, %dx.rstd.shaped)
  %dx.scaled: f32[2,12] = mul(%dx.t.shaped, %dx.weight.shaped)
  %dx.product: f32[2,12] = mul(%dx.scaled, %dx.normal)
  %dx.mean_product: f32[2,1] = mean(%dx.product) [axes=[1], keepdim=true]
  %dx.against: f32[2,1] = neg(%dx.mean_product)
  %dx.slope: f32[2,1] = mul(%dx.against, %dx.rstd.shaped)
  %dx.mean_gradient: f32[2,1] = mean(%dx.scaled) [axes=[1], keepdim=true]
  %dx.lowered: f32[2,1] = neg(%dx.mean_gradient)
  %dx.lift: f32[2,1] = mul(%dx.lowered, %dx.rstd.shaped)
  %dx.along: f32[2,12] = multiply_add(%dx.normal, %dx.slope, %dx.lift)
  %dx.dx: f32[2,12] = multiply_add(%dx.scaled, %dx.rstd.shaped, %dx.along)
  %dx: f32[2,3,4] = reshape(%dx.dx) [shape=[2, 3, 4]]
  %dx.weighted: f32[2,12] = mul(%dx.t.shaped, %dx.normal)
  %dx.total: f32[12] = sum(%dx.weighted) [axes=[0], dtype=f32, keepdim=false]
  %dw: f32[3,4] = reshape(%dx.total) [shape=[3, 4]]
  %dx.total_2: f32[12] = sum(%dx.t.shaped) [axes=[0], dtype=f32, keepdim=false]
  %db: f32[3,4] = reshape(%dx.total_2) [shape=[3, 4]]
  output result "y" = %y
  output gradient "argument:x" = %dx
  output gradient "weight" = %dw
  output gradient "bias" = %db
}
