Random ops of probability 0 and 1 are certain.
// before
graph g {
  %key: i64[] = input key
  %x: f32[10] = input argument "x"
  %all: f32[10] = dropout(%x, %key) [probability=0.0, stream=0]
  %none: f32[10] = dropout(%x, %key) [probability=1.0, stream=1]
  %kept: b8[10] = bernoulli(%key) [bits=16, probability=0.0, shape=[10], stream=2]
  %y: f32[10] = where(%kept, %all, 0.0)
  output result "y" = %y
  output result "none" = %none
}
// after
graph g {
  %key: i64[] = input key
  %x: f32[10] = input argument "x"
  %none: f32[10] = full() [dtype=f32, shape=[10], value=0.0]
  output result "y" = %x
  output result "none" = %none
}
