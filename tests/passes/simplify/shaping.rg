A neutral constant that gives the result its shape leaves an expand behind.
// before
graph g {
  %x: f32[4] = input argument "x"
  %b: b8[1,4] = input argument "b"
  %true: b8[3,1] = full() [dtype=b8, shape=[3,1], value=true]
  %mask: b8[3,4] = logical_and(%true, %b)
  %ones: f32[3,4] = full() [dtype=f32, shape=[3,4], value=1.0]
  %scaled: f32[3,4] = mul(%x, %ones)
  %zeros: f32[3,4] = full() [dtype=f32, shape=[3,4], value=0.0]
  %moved: f32[3,4] = sub(%x, %zeros)
  %grown: f32[3,4] = add(%zeros, %x)
  %turned: f32[3,4] = full() [dtype=f32, shape=[3,4], value=-1.0]
  %negated: f32[3,4] = mul(%turned, %x)
  %y: f32[3,4] = where(%mask, %scaled, 0.0)
  output result "y" = %y
  output result "moved" = %moved
  output result "grown" = %grown
  output result "negated" = %negated
}
// after
graph g {
  %x: f32[4] = input argument "x"
  %b: b8[1,4] = input argument "b"
  %scaled: f32[3,4] = expand(%x) [shape=[3, 4]]
  %zeros: f32[3,4] = full() [dtype=f32, shape=[3, 4], value=0.0]
  %grown: f32[3,4] = add(%zeros, %x)
  %negated.narrow: f32[4] = neg(%x)
  %negated: f32[3,4] = expand(%negated.narrow) [shape=[3, 4]]
  %y.narrow: f32[1,4] = where(%b, %x, 0.0)
  %y: f32[3,4] = expand(%y.narrow) [shape=[3, 4]]
  output result "y" = %y
  output result "moved" = %scaled
  output result "grown" = %grown
  output result "negated" = %negated
}
