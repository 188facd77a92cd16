What no output needs is gone, so is a gradient that nobody reads; inputs stay.
// before
graph g {
  %g: f32[2,4] = input tangent "y"
  %x: f32[2,4] = input argument "x"
  %w: f32[4] = input parameter "w"
  %unused: f32[2] = input argument "unused"
  %y: f32[2,4], %rstd: f32[2,1] = rms_norm(%x, %w) [axes=1, epsilon=1e-05, style="torch"]  # m.py:3 @norm
  %lost: f32[2,4] = exp(%y)
  %dx: f32[2,4], %dw: f32[4] = rms_norm_backward(%g, %x, %rstd, %w) [axes=1, needs=[true, true], style="torch"]
  output result "y" = %y
  output gradient "w" = %dw
}
// after
graph g {
  %g: f32[2,4] = input tangent "y"
  %x: f32[2,4] = input argument "x"
  %w: f32[4] = input parameter "w"
  %unused: f32[2] = input argument "unused"
  %y: f32[2,4], %rstd: f32[2,1] = rms_norm(%x, %w) [axes=1, epsilon=1e-05, style="torch"]  # m.py:3 @norm
  %dw: f32[4] = rms_norm_backward(%g, %x, %rstd, %w) [axes=1, needs=[false, true], style="torch"]
  output result "y" = %y
  output gradient "w" = %dw
}
