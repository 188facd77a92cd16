Ops equal in everything are one; streams, attributes, kinds of zero and of number make a difference.
// before
graph g {
  %key: i64[] = input key
  %x: f32[4] = input argument "x"
  %y: f32[4] = input argument "y"
  %k1: b8[4] = bernoulli(%key) [bits=16, probability=0.5, shape=[4], stream=3]
  %k2: b8[4] = bernoulli(%key) [bits=16, probability=0.5, shape=[4], stream=3]
  %k3: b8[4] = bernoulli(%key) [bits=16, probability=0.5, shape=[4], stream=4]
  %d1: f32[4] = dropout(%x, %key) [probability=0.5, stream=1]
  %d2: f32[4] = dropout(%x, %key) [probability=0.5, stream=2]
  %a1: f32[4] = add(%x, %y)
  %a2: f32[4] = add(%y, %x)
  %s1: f32[4] = sub(%x, %y)
  %s2: f32[4] = sub(%y, %x)
  %z1: f32[4] = div(%x, 0.0)
  %z2: f32[4] = div(%x, -0.0)
  %e1: f32[4] = exp(%a1)
  %e2: f32[4] = exp(%a2)
  %both: f32[4] = mul(%e1, %e2)
  output result "k1" = %k1
  output result "k2" = %k2
  output result "k3" = %k3
  output result "d1" = %d1
  output result "d2" = %d2
  output result "s1" = %s1
  output result "s2" = %s2
  output result "z1" = %z1
  output result "z2" = %z2
  output result "both" = %both
}
// after
graph g {
  %key: i64[] = input key
  %x: f32[4] = input argument "x"
  %y: f32[4] = input argument "y"
  %k1: b8[4] = bernoulli(%key) [bits=16, probability=0.5, shape=[4], stream=3]
  %k3: b8[4] = bernoulli(%key) [bits=16, probability=0.5, shape=[4], stream=4]
  %d1: f32[4] = dropout(%x, %key) [probability=0.5, stream=1]
  %d2: f32[4] = dropout(%x, %key) [probability=0.5, stream=2]
  %a1: f32[4] = add(%x, %y)
  %s1: f32[4] = sub(%x, %y)
  %s2: f32[4] = sub(%y, %x)
  %z1: f32[4] = div(%x, 0.0)
  %z2: f32[4] = div(%x, -0.0)
  %e1: f32[4] = exp(%a1)
  %both: f32[4] = mul(%e1, %e1)
  output result "k1" = %k1
  output result "k2" = %k1
  output result "k3" = %k3
  output result "d1" = %d1
  output result "d2" = %d2
  output result "s1" = %s1
  output result "s2" = %s2
  output result "z1" = %z1
  output result "z2" = %z2
  output result "both" = %both
}
