Views compose; a view that moves nothing is a reshape, one that changes nothing is its operand.
// before
graph g {
  %x: f32[4,6] = input argument "x"
  %u: f32[3,1,5] = input argument "u"
  %a: f32[24] = reshape(%x) [shape=[24]]
  %b: f32[2,12] = reshape(%a) [shape=[2,12]]
  %c: f32[4,6] = reshape(%b) [shape=[4,6]]
  %t: f32[6,4] = permute(%c) [axes=[1,0]]
  %tt: f32[4,6] = permute(%t) [axes=[1,0]]
  %p: f32[5,3,1] = permute(%u) [axes=[2,0,1]]
  %q: f32[1,5,3] = permute(%p) [axes=[2,0,1]]
  %unit: f32[1,3,5] = permute(%u) [axes=[1,0,2]]
  %flat: f32[15] = reshape(%unit) [shape=[15]]
  %e: f32[3,7,5] = expand(%u) [shape=[3,7,5]]
  %ee: f32[2,3,7,5] = expand(%e) [shape=[2,3,7,5]]
  %ones: f32[1,1,4,6] = expand(%x) [shape=[1,1,4,6]]
  %whole: f32[4,6] = slice(%x) [axis=0, start=0, stop=4, step=1]
  %s1: f32[4,3] = slice(%x) [axis=1, start=0, stop=6, step=2]
  %s2: f32[4,2] = slice(%s1) [axis=1, start=1, stop=3, step=1]
  %s3: f32[4,1] = slice(%s2) [axis=1, start=0, stop=2, step=2]
  %cut: f32[2,2] = slice(%s2) [axis=0, start=1, stop=3, step=1]
  %nothing: f32[4,0] = slice(%s1) [axis=1, start=2, stop=2, step=1]
  output result "tt" = %tt
  output result "q" = %q
  output result "flat" = %flat
  output result "ee" = %ee
  output result "ones" = %ones
  output result "whole" = %whole
  output result "s2" = %s2
  output result "s3" = %s3
  output result "cut" = %cut
  output result "nothing" = %nothing
}
// after
graph g {
  %x: f32[4,6] = input argument "x"
  %u: f32[3,1,5] = input argument "u"
  %p: f32[5,3,1] = permute(%u) [axes=[2, 0, 1]]
  %q: f32[1,5,3] = reshape(%p) [shape=[1, 5, 3]]
  %flat: f32[15] = reshape(%u) [shape=[15]]
  %ee: f32[2,3,7,5] = expand(%u) [shape=[2, 3, 7, 5]]
  %ones: f32[1,1,4,6] = reshape(%x) [shape=[1, 1, 4, 6]]
  %s1: f32[4,3] = slice(%x) [axis=1, start=0, step=2, stop=6]
  %s2: f32[4,2] = slice(%x) [axis=1, start=2, step=2, stop=5]
  %s3: f32[4,1] = slice(%x) [axis=1, start=2, step=4, stop=3]
  %cut: f32[2,2] = slice(%s2) [axis=0, start=1, step=1, stop=3]
  %nothing: f32[4,0] = slice(%s1) [axis=1, start=2, step=1, stop=2]
  output result "tt" = %x
  output result "q" = %q
  output result "flat" = %flat
  output result "ee" = %ee
  output result "ones" = %ones
  output result "whole" = %x
  output result "s2" = %s2
  output result "s3" = %s3
  output result "cut" = %cut
  output result "nothing" = %nothing
}
