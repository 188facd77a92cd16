Axes of extent 1 need no reduction; a sum of one element still turns -0.0 into 0.0.
// before
graph g {
  %x: bf16[3,1,4] = input argument "x"
  %n: i32[1,4] = input argument "n"
  %b: b8[4,1] = input argument "b"
  %part: bf16[3] = sum(%x) [axes=[1,2]]
  %keep: f32[3,1,1] = sum(%x) [axes=[1,2], keepdim=true, dtype=f32]
  %one: bf16[3,4] = sum(%x) [axes=[1]]
  %wide: f32[3,1,4] = sum(%x) [axes=[1], keepdim=true, dtype=f32]
  %mean: bf16[3,4] = mean(%x) [axes=[1]]
  %top: bf16[3,4] = amax(%x) [axes=[1]]
  %none: bf16[3,1,4] = amin(%x) [axes=[]]
  %whole: i64[4] = sum(%n) [axes=[0], dtype=i64]
  %count: i64[4] = sum(%b) [axes=[1], dtype=i64]
  %real: bf16[3,1] = sum(%x) [axes=[2]]
  output result "part" = %part
  output result "keep" = %keep
  output result "one" = %one
  output result "wide" = %wide
  output result "mean" = %mean
  output result "top" = %top
  output result "none" = %none
  output result "whole" = %whole
  output result "count" = %count
  output result "real" = %real
}
// after
graph g {
  %x: bf16[3,1,4] = input argument "x"
  %n: i32[1,4] = input argument "n"
  %b: b8[4,1] = input argument "b"
  %part.folded: bf16[3,1] = sum(%x) [axes=[2]]
  %part: bf16[3] = reshape(%part.folded) [shape=[3]]
  %keep: f32[3,1,1] = sum(%x) [axes=[2], dtype=f32, keepdim=true]
  %one.sum: bf16[3,1,4] = add(%x, 0.0)
  %one: bf16[3,4] = reshape(%one.sum) [shape=[3, 4]]
  %wide: f32[3,1,4] = cast(%one.sum) [dtype=f32]
  %top: bf16[3,4] = reshape(%x) [shape=[3, 4]]
  %whole.wide: i64[1,4] = cast(%n) [dtype=i64]
  %whole: i64[4] = reshape(%whole.wide) [shape=[4]]
  %count.wide: i64[4,1] = cast(%b) [dtype=i64]
  %count: i64[4] = reshape(%count.wide) [shape=[4]]
  output result "part" = %part
  output result "keep" = %keep
  output result "one" = %one
  output result "wide" = %wide
  output result "mean" = %one
  output result "top" = %top
  output result "none" = %x
  output result "whole" = %whole
  output result "count" = %count
  output result "real" = %part.folded
}
