// Gates, a biased activation, GELU by hand, dropout in front of a residual; relu has no name.
// before
graph joint {
  %a_0: f32[4,8] = input argument "a[0]"
  %a_1: f32[4,8] = input argument "a[1]"
  %a_2: f32[8] = input argument "a[2]"
  %key: i64[] = input key
  %tangent: f32[] = input tangent
  %grad.expand: f32[4] = expand(%tangent) [shape=[4]]
  %grad.m.unsqueeze: f32[4,1] = reshape(%grad.expand) [shape=[4, 1]]
  %sum: f32[], %sum_2: f32[], %sum_3: f32[], %sum_4: f32[], %sum_5: f32[], %grad.m.sum.total: f32[8], %grad.a_1: f32[4,8], %grad.a_0: f32[4,8] = fused(%a_0, %a_1, %a_2, %key, %grad.m.unsqueeze) [kind="rows"] {
    %a: f32[4,8] = input operand
    %a_2: f32[4,8] = input operand
    %a_3: f32[8] = input operand
    %key: i64[] = input operand
    %grad.m.unsqueeze: f32[4,1] = input operand
    %m.silu: f32[4,8] = silu(%a)
    %m.mul: f32[4,8] = mul(%m.silu, %a_2)
    %m.add: f32[4,8] = add(%a, %a_3)
    %m.gelu: f32[4,8] = gelu(%m.add) [approximate="none"]
    %m.mul_2: f32[4,8] = mul(%a, 0.5)
    %m.pow.square: f32[4,8] = mul(%a, %a)
    %m.pow: f32[4,8] = mul(%m.pow.square, %a)
    %m.mul_3: f32[4,8] = mul(%m.pow, 0.044715)
    %m.add_2: f32[4,8] = add(%a, %m.mul_3)
    %m.mul_4: f32[4,8] = mul(%m.add_2, 0.79788456)
    %m.tanh: f32[4,8] = tanh(%m.mul_4)
    %m.add_3: f32[4,8] = add(%m.tanh, 1)
    %m.mul_5: f32[4,8] = mul(%m.mul_2, %m.add_3)
    %m.dropout.kept: b8[4,8] = bernoulli(%key) [bits=16, probability=0.25, shape=[4, 8], stream=0]
    %m.dropout.scaled: f32[4,8] = mul(%a, 1.3333333333333333)
    %m.dropout: f32[4,8] = where(%m.dropout.kept, %m.dropout.scaled, 0)
    %m.add_4: f32[4,8] = add(%a_2, %m.dropout)
    %m.relu: f32[4,8] = relu(%a)
    %m.sum.row: f32[4,1] = sum(%m.mul) [axes=[1], dtype=f32, keepdim=true]
    %m.sum.row_2: f32[4,1] = sum(%m.gelu) [axes=[1], dtype=f32, keepdim=true]
    %m.sum.row_3: f32[4,1] = sum(%m.mul_5) [axes=[1], dtype=f32, keepdim=true]
    %m.sum.row_4: f32[4,1] = sum(%m.add_4) [axes=[1], dtype=f32, keepdim=true]
    %m.row: f32[4,1] = sum(%m.relu) [axes=[1], dtype=f32, keepdim=true]
    %sum: f32[] = sum(%m.sum.row) [axes=[0, 1], keepdim=false]
    %sum_2: f32[] = sum(%m.sum.row_2) [axes=[0, 1], keepdim=false]
    %sum_3: f32[] = sum(%m.sum.row_3) [axes=[0, 1], keepdim=false]
    %sum_4: f32[] = sum(%m.sum.row_4) [axes=[0, 1], keepdim=false]
    %sum_5: f32[] = sum(%m.row) [axes=[0, 1], keepdim=false]
    %grad.m.le: b8[4,8] = le(%m.relu, 0.0)
    %grad.m.where: f32[4,8] = where(%grad.m.le, 0.0, %grad.m.unsqueeze)
    %dropout.scaled.narrow: f32[4,1] = mul(%grad.m.unsqueeze, 1.3333333333333333)
    %grad.m.dropout: f32[4,8] = where(%m.dropout.kept, %dropout.scaled.narrow, 0)
    %grad.add: f32[4,8] = add(%grad.m.where, %grad.m.dropout)
    %grad.m.mul: f32[4,8] = mul(%grad.m.unsqueeze, %m.mul_2)
    %grad.m.mul_2: f32[4,8] = mul(%grad.m.unsqueeze, %m.add_3)
    %grad.m.tanh_backward: f32[4,8] = tanh_backward(%grad.m.mul, %m.tanh)
    %grad.m.mul_3: f32[4,8] = mul(%grad.m.tanh_backward, 0.79788456)
    %grad.add_2: f32[4,8] = add(%grad.add, %grad.m.mul_3)
    %grad.m.mul_4: f32[4,8] = mul(%grad.m.mul_3, 0.044715)
    %grad.m.mul_5: f32[4,8] = mul(%m.pow.square, 3.0)
    %grad.m.mul_6: f32[4,8] = mul(%grad.m.mul_4, %grad.m.mul_5)
    %grad.add_3: f32[4,8] = add(%grad.add_2, %grad.m.mul_6)
    %grad.m.mul_7: f32[4,8] = mul(%grad.m.mul_2, 0.5)
    %grad.add_4: f32[4,8] = add(%grad.add_3, %grad.m.mul_7)
    %grad.m.gelu_backward: f32[4,8] = gelu_backward(%grad.m.unsqueeze, %m.add) [approximate="none"]
    %m.sum.total: f32[8] = sum(%grad.m.gelu_backward) [axes=[0], dtype=f32, keepdim=false]
    %grad.add_5: f32[4,8] = add(%grad.add_4, %grad.m.gelu_backward)
    %grad.m.mul_8: f32[4,8] = mul(%grad.m.unsqueeze, %m.silu)
    %grad.m.mul_9: f32[4,8] = mul(%grad.m.unsqueeze, %a_2)
    %grad.a: f32[4,8] = add(%grad.m.unsqueeze, %grad.m.mul_8)
    %grad.m.silu_backward: f32[4,8] = silu_backward(%grad.m.mul_9, %a)
    %grad.a_2: f32[4,8] = add(%grad.add_5, %grad.m.silu_backward)
    output result = %sum
    output result = %sum_2
    output result = %sum_3
    output result = %sum_4
    output result = %sum_5
    output result = %m.sum.total
    output result = %grad.a
    output result = %grad.a_2
  }
  %add_5: f32[] = fused(%sum, %sum_2, %sum_3, %sum_4, %sum_5) [kind="rows"] {
    %sum: f32[] = input operand
    %sum_2: f32[] = input operand
    %sum_3: f32[] = input operand
    %sum_4: f32[] = input operand
    %sum_5: f32[] = input operand
    %add: f32[] = add(%sum, 0)
    %add_2: f32[] = add(%add, %sum_2)
    %add_3: f32[] = add(%add_2, %sum_3)
    %add_4: f32[] = add(%add_3, %sum_4)
    %add_5: f32[] = add(%add_4, %sum_5)
    output result = %add_5
  }
  output result = %add_5
  output gradient "argument:a[0]" = %grad.a_0
  output gradient "argument:a[1]" = %grad.a_1
  output gradient "argument:a[2]" = %grad.m.sum.total
}
// after
graph joint {
  %a_0: f32[4,8] = input argument "a[0]"
  %a_1: f32[4,8] = input argument "a[1]"
  %a_2: f32[8] = input argument "a[2]"
  %key: i64[] = input key
  %tangent: f32[] = input tangent
  %grad.expand: f32[4] = expand(%tangent) [shape=[4]]
  %grad.m.unsqueeze: f32[4,1] = reshape(%grad.expand) [shape=[4, 1]]
  %sum: f32[], %sum_2: f32[], %sum_3: f32[], %sum_4: f32[], %sum_5: f32[], %grad.m.sum.total: f32[8], %grad.a_1: f32[4,8], %grad.a_0: f32[4,8] = fused(%a_0, %a_1, %a_2, %key, %grad.m.unsqueeze) [form="gated_silu, bias_gelu, gelu_tanh, dropout_residual, gelu_backward, silu_backward", kind="rows"] {
    %a: f32[4,8] = input operand
    %a_2: f32[4,8] = input operand
    %a_3: f32[8] = input operand
    %key: i64[] = input operand
    %grad.m.unsqueeze: f32[4,1] = input operand
    %m.silu: f32[4,8] = silu(%a)
    %m.mul: f32[4,8] = mul(%m.silu, %a_2)
    %m.add: f32[4,8] = add(%a, %a_3)
    %m.gelu: f32[4,8] = gelu(%m.add) [approximate="none"]
    %m.mul_2: f32[4,8] = mul(%a, 0.5)
    %m.pow.square: f32[4,8] = mul(%a, %a)
    %m.pow: f32[4,8] = mul(%m.pow.square, %a)
    %m.mul_3: f32[4,8] = mul(%m.pow, 0.044715)
    %m.add_2: f32[4,8] = add(%a, %m.mul_3)
    %m.mul_4: f32[4,8] = mul(%m.add_2, 0.79788456)
    %m.tanh: f32[4,8] = tanh(%m.mul_4)
    %m.add_3: f32[4,8] = add(%m.tanh, 1)
    %m.mul_5: f32[4,8] = mul(%m.mul_2, %m.add_3)
    %m.dropout.kept: b8[4,8] = bernoulli(%key) [bits=16, probability=0.25, shape=[4, 8], stream=0]
    %m.dropout.scaled: f32[4,8] = mul(%a, 1.3333333333333333)
    %m.dropout: f32[4,8] = where(%m.dropout.kept, %m.dropout.scaled, 0)
    %m.add_4: f32[4,8] = add(%a_2, %m.dropout)
    %m.relu: f32[4,8] = relu(%a)
    %m.sum.row: f32[4,1] = sum(%m.mul) [axes=[1], dtype=f32, keepdim=true]
    %m.sum.row_2: f32[4,1] = sum(%m.gelu) [axes=[1], dtype=f32, keepdim=true]
    %m.sum.row_3: f32[4,1] = sum(%m.mul_5) [axes=[1], dtype=f32, keepdim=true]
    %m.sum.row_4: f32[4,1] = sum(%m.add_4) [axes=[1], dtype=f32, keepdim=true]
    %m.row: f32[4,1] = sum(%m.relu) [axes=[1], dtype=f32, keepdim=true]
    %sum: f32[] = sum(%m.sum.row) [axes=[0, 1], keepdim=false]
    %sum_2: f32[] = sum(%m.sum.row_2) [axes=[0, 1], keepdim=false]
    %sum_3: f32[] = sum(%m.sum.row_3) [axes=[0, 1], keepdim=false]
    %sum_4: f32[] = sum(%m.sum.row_4) [axes=[0, 1], keepdim=false]
    %sum_5: f32[] = sum(%m.row) [axes=[0, 1], keepdim=false]
    %grad.m.le: b8[4,8] = le(%m.relu, 0.0)
    %grad.m.where: f32[4,8] = where(%grad.m.le, 0.0, %grad.m.unsqueeze)
    %dropout.scaled.narrow: f32[4,1] = mul(%grad.m.unsqueeze, 1.3333333333333333)
    %grad.m.dropout: f32[4,8] = where(%m.dropout.kept, %dropout.scaled.narrow, 0)
    %grad.add: f32[4,8] = add(%grad.m.where, %grad.m.dropout)
    %grad.m.mul: f32[4,8] = mul(%grad.m.unsqueeze, %m.mul_2)
    %grad.m.mul_2: f32[4,8] = mul(%grad.m.unsqueeze, %m.add_3)
    %grad.m.tanh_backward: f32[4,8] = tanh_backward(%grad.m.mul, %m.tanh)
    %grad.m.mul_3: f32[4,8] = mul(%grad.m.tanh_backward, 0.79788456)
    %grad.add_2: f32[4,8] = add(%grad.add, %grad.m.mul_3)
    %grad.m.mul_4: f32[4,8] = mul(%grad.m.mul_3, 0.044715)
    %grad.m.mul_5: f32[4,8] = mul(%m.pow.square, 3.0)
    %grad.m.mul_6: f32[4,8] = mul(%grad.m.mul_4, %grad.m.mul_5)
    %grad.add_3: f32[4,8] = add(%grad.add_2, %grad.m.mul_6)
    %grad.m.mul_7: f32[4,8] = mul(%grad.m.mul_2, 0.5)
    %grad.add_4: f32[4,8] = add(%grad.add_3, %grad.m.mul_7)
    %grad.m.gelu_backward: f32[4,8] = gelu_backward(%grad.m.unsqueeze, %m.add) [approximate="none"]
    %m.sum.total: f32[8] = sum(%grad.m.gelu_backward) [axes=[0], dtype=f32, keepdim=false]
    %grad.add_5: f32[4,8] = add(%grad.add_4, %grad.m.gelu_backward)
    %grad.m.mul_8: f32[4,8] = mul(%grad.m.unsqueeze, %m.silu)
    %grad.m.mul_9: f32[4,8] = mul(%grad.m.unsqueeze, %a_2)
    %grad.a: f32[4,8] = add(%grad.m.unsqueeze, %grad.m.mul_8)
    %grad.m.silu_backward: f32[4,8] = silu_backward(%grad.m.mul_9, %a)
    %grad.a_2: f32[4,8] = add(%grad.add_5, %grad.m.silu_backward)
    output result = %sum
    output result = %sum_2
    output result = %sum_3
    output result = %sum_4
    output result = %sum_5
    output result = %m.sum.total
    output result = %grad.a
    output result = %grad.a_2
  }
  %add_5: f32[] = fused(%sum, %sum_2, %sum_3, %sum_4, %sum_5) [kind="rows"] {
    %sum: f32[] = input operand
    %sum_2: f32[] = input operand
    %sum_3: f32[] = input operand
    %sum_4: f32[] = input operand
    %sum_5: f32[] = input operand
    %add: f32[] = add(%sum, 0)
    %add_2: f32[] = add(%add, %sum_2)
    %add_3: f32[] = add(%add_2, %sum_3)
    %add_4: f32[] = add(%add_3, %sum_4)
    %add_5: f32[] = add(%add_4, %sum_5)
    output result = %add_5
  }
  output result = %add_5
  output gradient "argument:a[0]" = %grad.a_0
  output gradient "argument:a[1]" = %grad.a_1
  output gradient "argument:a[2]" = %grad.m.sum.total
}
