#!/usr/bin/env python3
"""Prints the figures of tests/train/soap.cpp: the papers' formulas in numpy, in float64. SOAP has the beginning of
github.com/nikhilvyas/SOAP (eigenvectors of the first gradient's products, no step), no damping, and its average of
gradients in the rotated basis; Shampoo has averages, grafting to Adam and damping.

usage: soap_figures.py (with numpy)"""

import numpy

LR = 0.02
STEPS = 4


def gradient(shape, step):
    k = numpy.arange(shape[0] * shape[1], dtype=numpy.float64)
    return numpy.sin((k + 1) * (k + step) * 0.37).reshape(shape)


def products(g, most):
    """G Gt and Gt G, None where the side is longer than `most`."""
    return [p if len(p) <= most else None for p in (g @ g.T, g.T @ g)]


def between(left, x, right):
    x = x if left is None else left @ x
    return x if right is None else x @ right


def transposed(bases):
    return [None if q is None else q.T for q in bases]


def soap(shape, betas, kept, eps, most=10000, normalise=False):
    w = numpy.cos(numpy.arange(shape[0] * shape[1]) * 0.9).reshape(shape)
    g = gradient(shape, 1)
    factors = [None if p is None else (1 - kept) * p for p in products(g, most)]
    bases = [None if f is None else numpy.linalg.eigh(f)[1][:, ::-1] for f in factors]
    m, v = numpy.zeros(shape), numpy.zeros(shape)
    for step in range(1, STEPS):
        g = gradient(shape, step + 1)
        left, right = bases
        rotated = between(transposed(bases)[0], g, right)
        m = betas[0] * m + (1 - betas[0]) * rotated
        v = betas[1] * v + (1 - betas[1]) * rotated ** 2
        size = LR * (1 - betas[1] ** step) ** 0.5 / (1 - betas[0] ** step)
        update = between(left, m / (v ** 0.5 + eps), transposed(bases)[1])
        if normalise:
            update /= (update ** 2).mean() ** 0.5
            size = LR
        w = w - size * update
        m = between(left, m, transposed(bases)[1])
        for side, p in enumerate(products(g, most)):
            if p is None:
                continue
            factors[side] = kept * factors[side] + (1 - kept) * p
            q = bases[side]
            order = numpy.argsort(-numpy.diag(q.T @ factors[side] @ q))
            v = numpy.take(v, order, side)
            bases[side] = numpy.linalg.qr(factors[side] @ q[:, order])[0]
        m = between(transposed(bases)[0], m, bases[1])
    return w


def shampoo(shape, betas, kept, eps, most=10000, damping=1e-3):
    w = numpy.cos(numpy.arange(shape[0] * shape[1]) * 0.9).reshape(shape)
    m, v = numpy.zeros(shape), numpy.zeros(shape)
    factors = [0, 0]
    for step in range(1, STEPS + 1):
        g = gradient(shape, step)
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g ** 2
        roots, given = [None, None], products(g, most)
        for side, p in enumerate(given):
            if p is not None:
                factors[side] = kept * factors[side] + (1 - kept) * p
                mean = numpy.trace(factors[side]) / len(p)
                values, vectors = numpy.linalg.eigh(factors[side] + damping * mean * numpy.eye(len(p)))
                sides = sum(one is not None for one in given)
                roots[side] = vectors @ numpy.diag(values ** (-0.5 / sides)) @ vectors.T
        mean = m / (1 - betas[0] ** step)
        adam = mean / ((v / (1 - betas[1] ** step)) ** 0.5 + eps)
        update = between(roots[0], mean, roots[1])
        w = w - LR * update * numpy.linalg.norm(adam) / numpy.linalg.norm(update)
    return w


for name, w in {
    "soap, both sides": soap((3, 4), (0.9, 0.8), 0.7, 1e-3),
    "soap, one side, normalised": soap((3, 6), (0.95, 0.95), 0.95, 1e-8, most=4, normalise=True),
    "shampoo, both sides": shampoo((3, 4), (0.9, 0.8), 0.7, 1e-3, damping=0.1),
    "shampoo, one side": shampoo((3, 6), (0.95, 0.95), 0.95, 1e-8, most=4),
}.items():
    print(name, float((w.ravel() * numpy.arange(1, w.size + 1)).sum()), float(w[-1, -1]))
