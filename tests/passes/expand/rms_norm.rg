// Three styles: where the weight meets the rounding.
// tolerance 1e-2
// before
graph g {
  %x: bf16[2,4] = input argument "x"
  %weight: bf16[4] = input parameter "weight"
  %t: bf16[2,4] = input tangent "y"
  %y: bf16[2,4], %rstd: f32[2,1] = rms_norm(%x, %weight) [axes=1, epsilon=1e-06, style="torch"]
  %l: bf16[2,4], %l.rstd: f32[2,1] = rms_norm(%x, %weight) [axes=1, epsilon=1e-06, style="llama"]
  %g: bf16[2,4], %g.rstd: f32[2,1] = rms_norm(%x, %weight) [axes=1, epsilon=1e-06, style="gemma"]
  %dx: bf16[2,4], %dw: bf16[4] = rms_norm_backward(%t, %x, %l.rstd, %weight) [axes=1, needs=[true, true], style="llama"]
  %gdw: bf16[4] = rms_norm_backward(%t, %x, %g.rstd, %weight) [axes=1, needs=[false, true], style="gemma"]
  output result "y" = %y
  output result "l" = %l
  output result "g" = %g
  output gradient "argument:x" = %dx
  output gradient "weight" = %dw
  output gradient "other" = %gdw
}
// after
graph g {
  %x: bf16[2,4] = input argument "x"
  %weight: bf16[4] = input parameter "weight"
  %t: bf16[2,4] = input tangent "y"
  %y.x.f32: f32[2,4] = cast(%x) [dtype=f32]
  %y.weight.f32: f32[4] = cast(%weight) [dtype=f32]
  %y.square: f32[2,4] = mul(%y.x.f32, %y.x.f32)
  %y.mean_square: f32[2,1] = mean(%y.square) [axes=[1], keepdim=true]
  %y.shifted: f32[2,1] = add(%y.mean_square, 1e-06)
  %rstd: f32[2,1] = rsqrt(%y.shifted)
  %y.normal: f32[2,4] = mul(%y.x.f32, %rstd)
  %y.scaled: f32[2,4] = mul(%y.normal, %y.weight.f32)
  %y: bf16[2,4] = cast(%y.scaled) [dtype=bf16]
  %l.x.f32: f32[2,4] = cast(%x) [dtype=f32]
  %l.weight.f32: f32[4] = cast(%weight) [dtype=f32]
  %l.square: f32[2,4] = mul(%l.x.f32, %l.x.f32)
  %l.mean_square: f32[2,1] = mean(%l.square) [axes=[1], keepdim=true]
  %l.shifted: f32[2,1] = add(%l.mean_square, 1e-06)
  %l.rstd: f32[2,1] = rsqrt(%l.shifted)
  %l.normal: f32[2,4] = mul(%l.x.f32, %l.rstd)
  %l.normal.rounded: bf16[2,4] = cast(%l.normal) [dtype=bf16]
  %l.rounded.f32: f32[2,4] = cast(%l.normal.rounded) [dtype=f32]
  %l.scaled: f32[2,4] = mul(%l.rounded.f32, %l.weight.f32)
  %l: bf16[2,4] = cast(%l.scaled) [dtype=bf16]
  %g.x.f32: f32[2,4] = cast(%x) [dtype=f32]
  %g.weight.f32: f32[4] = cast(%weight) [dtype=f32]
  %g.square: f32[2,4] = mul(%g.x.f32, %g.x.f32)
  %g.mean_square: f32[2,1] = mean(%g.square) [axes=[1], keepdim=true]
  %g.shifted: f32[2,1] = add(%g.mean_square, 1e-06)
  %g.rstd: f32[2,1] = rsqrt(%g.shifted)
  %g.normal: f32[2,4] = mul(%g.x.f32, %g.rstd)
  %g.factor: f32[4] = add(%g.weight.f32, 1)
  %g.scaled: f32[2,4] = mul(%g.normal, %g.factor)
  %g: bf16[2,4] = cast(%g.scaled) [dtype=bf16]
  %dx.t.f32: f32[2,4] = cast(%t) [dtype=f32]
  %dx.x.f32: f32[2,4] = cast(%x) [dtype=f32]
  %dx.weight.f32: f32[4] = cast(%weight) [dtype=f32]
  %dx.normal: f32[2,4] = mul(%dx.x.f32, %l.rstd)
  %dx.scaled: f32[2,4] = mul(%dx.t.f32, %dx.weight.f32)
  %dx.product: f32[2,4] = mul(%dx.scaled, %dx.normal)
  %dx.mean_product: f32[2,1] = mean(%dx.product) [axes=[1], keepdim=true]
  %dx.against: f32[2,1] = neg(%dx.mean_product)
  %dx.slope: f32[2,1] = mul(%dx.against, %l.rstd)
  %dx.slope.whole: f32[2,1] = mul(%dx.slope, %l.rstd)
  %dx.along: f32[2,4] = mul(%dx.x.f32, %dx.slope.whole)
  %dx.dx: f32[2,4] = multiply_add(%dx.scaled, %l.rstd, %dx.along)
  %dx: bf16[2,4] = cast(%dx.dx) [dtype=bf16]
  %dx.normal.rounded: bf16[2,4] = cast(%dx.normal) [dtype=bf16]
  %dx.rounded.f32: f32[2,4] = cast(%dx.normal.rounded) [dtype=f32]
  %dx.weighted: f32[2,4] = mul(%dx.t.f32, %dx.rounded.f32)
  %dw: bf16[4] = sum(%dx.weighted) [axes=[0], dtype=bf16, keepdim=false]
  %gdw.t.f32: f32[2,4] = cast(%t) [dtype=f32]
  %gdw.x.f32: f32[2,4] = cast(%x) [dtype=f32]
  %gdw.weight.f32: f32[4] = cast(%weight) [dtype=f32]
  %gdw.normal: f32[2,4] = mul(%gdw.x.f32, %g.rstd)
  %gdw.weighted: f32[2,4] = mul(%gdw.t.f32, %gdw.normal)
  %gdw: bf16[4] = sum(%gdw.weighted) [axes=[0], dtype=bf16, keepdim=false]
  output result "y" = %y
  output result "l" = %l
  output result "g" = %g
  output gradient "argument:x" = %dx
  output gradient "weight" = %dw
  output gradient "other" = %gdw
}
