// A bias gradient joins the op that makes what it sums; the product keeps its shape.
// before
graph g {
  %h: f32[2,3,4] = input argument "h"
  %w: f32[4,5] = input parameter "w"
  %a: f32[2,3,4] = gelu(%h) [approximate="none"]
  %flat: f32[6,4] = reshape(%a) [shape=[6, 4]]
  %p: f32[6,5] = matmul(%flat, %w)
  %b: f32[4] = sum(%flat) [axes=[0], keepdim=false]
  output result "p" = %p
  output result "b" = %b
}
// after
graph g {
  %h: f32[2,3,4] = input argument "h"
  %w: f32[4,5] = input parameter "w"
  %a: f32[2,3,4] = gelu(%h) [approximate="none"]
  %flat: f32[6,4] = reshape(%a) [shape=[6, 4]]
  %p: f32[6,5] = matmul(%flat, %w)
  %b: f32[4] = sum(%a) [axes=[0, 1], keepdim=false]
  output result "p" = %p
  output result "b" = %b
}
