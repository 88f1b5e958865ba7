from flask import Blueprint

blueprint = Blueprint("metrics", __name__)
