import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        y = x * 2
        part = y[:, 1]
        y += 1
        return part


def get_inputs():
    return [torch.rand(4, 3)]


def get_init_inputs():
    return []
