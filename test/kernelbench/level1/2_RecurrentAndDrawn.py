import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, size, hidden, layers):
        super().__init__()
        self.lstm = nn.LSTM(size, hidden, layers, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(2 * hidden, hidden)
        self.head = nn.Linear(hidden, 3)
        self.drop = nn.Dropout(0.25)
        self.layers, self.hidden = layers, hidden

    def forward(self, x):
        start = [torch.randn(2 * self.layers, x.size(0), self.hidden, device=x.device)
                 for _ in range(2)]
        y, (h, c) = self.lstm(x, tuple(start))
        y, last = self.gru(y.transpose(0, 1))
        return self.drop(self.head(y[-1])), h[0] * c[-1], last


def get_inputs():
    return [torch.randn(2, 5, 3)]


def get_init_inputs():
    return [3, 4, 2]
