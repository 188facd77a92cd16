// Left alone: a last axis that moves, a value that others read, a mask counted in its own order.
// before
graph g {
  %x: f32[2,3,4] = input argument "x"
  %key: i64[] = input key
  %a: f32[2,3,4] = neg(%x)
  %last: f32[2,4,3] = permute(%a) [axes=[0, 2, 1]]
  %b: f32[2,3,4] = exp(%x)
  %read: f32[3,2,4] = permute(%b) [axes=[1, 0, 2]]
  %more: f32[2,3,4] = neg(%b)
  %kept: b8[2,3,4] = bernoulli(%key) [bits=16, probability=0.5, shape=[2, 3, 4], stream=0]
  %d: f32[2,3,4] = where(%kept, %x, 0.0)
  %masked: f32[3,2,4] = permute(%d) [axes=[1, 0, 2]]
  output result "last" = %last
  output result "read" = %read
  output result "more" = %more
  output result "masked" = %masked
}
// after
graph g {
  %x: f32[2,3,4] = input argument "x"
  %key: i64[] = input key
  %a: f32[2,3,4] = neg(%x)
  %last: f32[2,4,3] = permute(%a) [axes=[0, 2, 1]]
  %b: f32[2,3,4] = exp(%x)
  %read: f32[3,2,4] = permute(%b) [axes=[1, 0, 2]]
  %more: f32[2,3,4] = neg(%b)
  %kept: b8[2,3,4] = bernoulli(%key) [bits=16, probability=0.5, shape=[2, 3, 4], stream=0]
  %d: f32[2,3,4] = where(%kept, %x, 0.0)
  %masked: f32[3,2,4] = permute(%d) [axes=[1, 0, 2]]
  output result "last" = %last
  output result "read" = %read
  output result "more" = %more
  output result "masked" = %masked
}
